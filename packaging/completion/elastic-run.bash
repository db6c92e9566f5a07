# bash completion for elastic-run
# Written by agent/keys_doc from the tables in agent/: change those.
_elastic_run()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words='' action='' i
    COMPREPLY=()
    # Behind the first operand the program's own arguments begin.
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --nnodes | --nproc-per-node | --rdzv-id | --role | --set | --node-id | --node-rank | --local-addr | --numa-binding | --rdzv-backend | --rdzv-endpoint | --rdzv-conf | --master-addr | --master-port | --exit-barrier-timeout | --max-restarts | --monitor-interval | --start-method | --signals-to-handle | --shutdown-timeout | --log-dir | -r | --redirects | -t | --tee | --local-ranks-filter | --log-line-prefix-template | --duplicate-stdout-filters | --duplicate-stderr-filters | --event-log-handler | --logs-specs | --print-completion) ((i++)) ;;
        -*) ;;
        *) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        esac
    done
    case $prev in
    --nnodes) action='-W ""' ;;
    --nproc-per-node) action='-W ""' ;;
    --rdzv-id) action='-W ""' ;;
    --role) action='-W ""' ;;
    --set) words='version= name= command= env= workdir= stdin= nnodes= nproc_per_node= role= roles= virtual_local_rank= master_port= port_range= node.id= node.rank= node.address= node.topology= node.numa_binding= rendezvous.backend= rendezvous.endpoints= rendezvous.prefix= rendezvous.lease_ttl= rendezvous.death_grace= rendezvous.replacement_wait= rendezvous.join_timeout= rendezvous.last_call_timeout= rendezvous.exit_timeout= rendezvous.store_loss.policy= rendezvous.store_loss.limit= rendezvous.retention= rendezvous.tls.ca= rendezvous.tls.cert= rendezvous.tls.key= rendezvous.tls.server_name= rendezvous.auth.user= rendezvous.auth.password_file= rendezvous.managed.data_dir= rendezvous.managed.etcd= rendezvous.managed.peer_port= rendezvous.managed.secret_file= rendezvous.managed.insecure= restart.max= restart.window= restart.backoff.initial= restart.backoff.max= restart.fatal_exit_codes= restart.on_loss= restart.respawn_wait= restart.poison_step.failures= restart.poison_step.action= restart.node_strikes.max= restart.node_strikes.window= restart.node_strikes.cooldown= restart.gpu_memory_timeout= resize.at= resize.settle= resize.min_interval= resize.notice_signal= resize.grace= resize.below_min= stop.signal= stop.grace= stop.signals_to_handle= stop.forward= preempt.signals= preempt.file= preempt.command= preempt.interval= preempt.deadline= hang.floor= hang.factor= hang.startup= hang.checkpoint= hang.evaluation= hang.action= hang.stacks= straggler.threshold= straggler.for= straggler.action= health.builtin= health.command= health.timeout= health.cooldown= checkpoint.dir= checkpoint.every_steps= checkpoint.every= checkpoint.keep_last= checkpoint.keep_every= checkpoint.local_dir= checkpoint.on_failure.action= checkpoint.on_failure.max= log.dir= log.console= log.prefix= log.timestamps= log.redirects= log.tee= log.max_size= log.max_files= log.keep_generations= log.duplicate_stdout= log.duplicate_stderr= log.format= http.listen= http.token_file= metrics.textfile= notify.command= notify.on= limits.memory= limits.cpus= limits.pids=' ;;
    --node-id) action='-W ""' ;;
    --node-rank) action='-W ""' ;;
    --local-addr) action='-W ""' ;;
    --numa-binding) words='none node socket exclusive core-complex' ;;
    --rdzv-backend) words='auto embedded etcd managed static c10d etcd-v2' ;;
    --rdzv-endpoint) action='-W ""' ;;
    --rdzv-conf) action='-W ""' ;;
    --master-addr) action='-W ""' ;;
    --master-port) action='-W ""' ;;
    --exit-barrier-timeout) action='-W ""' ;;
    --max-restarts) action='-W ""' ;;
    --monitor-interval) action='-W ""' ;;
    --start-method) action='-W ""' ;;
    --signals-to-handle) action='-W ""' ;;
    --shutdown-timeout) action='-W ""' ;;
    --log-dir) action='-d' ;;
    -r | --redirects) action='-W ""' ;;
    -t | --tee) action='-W ""' ;;
    --local-ranks-filter) action='-W ""' ;;
    --log-line-prefix-template) action='-W ""' ;;
    --duplicate-stdout-filters) action='-W ""' ;;
    --duplicate-stderr-filters) action='-W ""' ;;
    --event-log-handler) action='-W ""' ;;
    --logs-specs) action='-W ""' ;;
    -h | --help) words='keys types substitution exit-codes options job node rendezvous restart resize stop preempt hang health checkpoint log observe limits run' ;;
    --print-completion) words='bash zsh fish' ;;
    *)
        if [[ $cur == -* ]]; then
            words='--nnodes --nproc-per-node --rdzv-id --role --virtual-local-rank -m --module --no-python --run-path --set --node-id --node-rank --local-addr --numa-binding --rdzv-backend --rdzv-endpoint --rdzv-conf --standalone --master-addr --master-port --exit-barrier-timeout --max-restarts --monitor-interval --start-method --signals-to-handle --shutdown-timeout --log-dir -r --redirects -t --tee --local-ranks-filter --log-line-prefix-template --duplicate-stdout-filters --duplicate-stderr-filters --event-log-handler --logs-specs --fresh --resume --update-spec --check --dry-run --print-config --version -h --help --print-completion'
        else
            action='-f'
        fi
        ;;
    esac
    if [[ $words ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
        [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace
    elif [[ $action == -? ]]; then
        compopt -o filenames
        COMPREPLY=($(compgen "$action" -- "$cur"))
    fi
    return 0
}
complete -F _elastic_run elastic-run
