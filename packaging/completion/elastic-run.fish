# fish completion for elastic-run
# Written by agent/keys_doc from the tables in agent/: change those.
# Own options end at the first operand.
function __elastic_run_own
    set -l words (commandline -opc)
    set -e words[1]
    set -l value 0
    for word in $words
        if test $value = 1
            set value 0
            continue
        end
        switch $word
            case --
                return 1
            case --nnodes --nproc-per-node --rdzv-id --role --set --node-id --node-rank --local-addr --numa-binding --rdzv-backend --rdzv-endpoint --rdzv-conf --master-addr --master-port --exit-barrier-timeout --max-restarts --monitor-interval --start-method --signals-to-handle --shutdown-timeout --log-dir -r --redirects -t --tee --local-ranks-filter --log-line-prefix-template --duplicate-stdout-filters --duplicate-stderr-filters --event-log-handler --logs-specs --print-completion 
                set value 1
            case '-*'
            case '*'
                return 1
        end
    end
    return 0
end
complete -c elastic-run -n __elastic_run_own -l nnodes -x -d 'number of nodes'
complete -c elastic-run -n __elastic_run_own -l nproc-per-node -x -d 'workers on this node'
complete -c elastic-run -n __elastic_run_own -l rdzv-id -x -d 'the job\'s name'
complete -c elastic-run -n __elastic_run_own -l role -x -d 'this node\'s role'
complete -c elastic-run -n __elastic_run_own -l virtual-local-rank -d 'each worker sees one GPU and LOCAL_RANK=0'
complete -c elastic-run -n __elastic_run_own -s m -l module -d 'PROGRAM is a Python module: python3 -u -m'
complete -c elastic-run -n __elastic_run_own -l no-python -d 'run PROGRAM itself, even when it ends in .py'
complete -c elastic-run -n __elastic_run_own -l run-path -d 'refused: give PROGRAM'
complete -c elastic-run -n __elastic_run_own -l set -x -a 'version= name= command= env= workdir= stdin= nnodes= nproc_per_node= role= roles= virtual_local_rank= master_port= port_range= node.id= node.rank= node.address= node.topology= node.numa_binding= rendezvous.backend= rendezvous.endpoints= rendezvous.prefix= rendezvous.lease_ttl= rendezvous.death_grace= rendezvous.replacement_wait= rendezvous.join_timeout= rendezvous.last_call_timeout= rendezvous.exit_timeout= rendezvous.store_loss.policy= rendezvous.store_loss.limit= rendezvous.retention= rendezvous.tls.ca= rendezvous.tls.cert= rendezvous.tls.key= rendezvous.tls.server_name= rendezvous.auth.user= rendezvous.auth.password_file= rendezvous.managed.data_dir= rendezvous.managed.etcd= rendezvous.managed.peer_port= rendezvous.managed.secret_file= rendezvous.managed.insecure= restart.max= restart.window= restart.backoff.initial= restart.backoff.max= restart.fatal_exit_codes= restart.on_loss= restart.respawn_wait= restart.poison_step.failures= restart.poison_step.action= restart.node_strikes.max= restart.node_strikes.window= restart.node_strikes.cooldown= restart.gpu_memory_timeout= resize.at= resize.settle= resize.min_interval= resize.notice_signal= resize.grace= resize.below_min= stop.signal= stop.grace= stop.signals_to_handle= stop.forward= preempt.signals= preempt.file= preempt.command= preempt.interval= preempt.deadline= hang.floor= hang.factor= hang.startup= hang.checkpoint= hang.evaluation= hang.action= hang.stacks= straggler.threshold= straggler.for= straggler.action= health.builtin= health.command= health.timeout= health.cooldown= checkpoint.dir= checkpoint.every_steps= checkpoint.every= checkpoint.keep_last= checkpoint.keep_every= checkpoint.local_dir= checkpoint.on_failure.action= checkpoint.on_failure.max= log.dir= log.console= log.prefix= log.timestamps= log.redirects= log.tee= log.max_size= log.max_files= log.keep_generations= log.duplicate_stdout= log.duplicate_stderr= log.format= http.listen= http.token_file= metrics.textfile= notify.command= notify.on= limits.memory= limits.cpus= limits.pids=' -d 'any key of the job spec, dotted; lists and maps as YAML'
complete -c elastic-run -n __elastic_run_own -l node-id -x -d 'identity of this node'
complete -c elastic-run -n __elastic_run_own -l node-rank -x -d 'preferred group rank'
complete -c elastic-run -n __elastic_run_own -l local-addr -x -d 'what peers connect to'
complete -c elastic-run -n __elastic_run_own -l numa-binding -x -a 'none node socket exclusive core-complex' -d 'CPUs that each worker is bound to'
complete -c elastic-run -n __elastic_run_own -l rdzv-backend -x -a 'auto embedded etcd managed static c10d etcd-v2' -d 'static, c10d, etcd-v2, etcd, or a value of rendezvous.backend'
complete -c elastic-run -n __elastic_run_own -l rdzv-endpoint -x -d 'where the store is'
complete -c elastic-run -n __elastic_run_own -l rdzv-conf -x -d 'join_timeout, last_call_timeout, timeout, certificates'
complete -c elastic-run -n __elastic_run_own -l standalone -d 'one node, embedded store'
complete -c elastic-run -n __elastic_run_own -l master-addr -x -d 'no effect on one node, where workers get its own address'
complete -c elastic-run -n __elastic_run_own -l master-port -x -d 'MASTER_PORT of the workers; 0 or not given: a free one, fresh in each generation'
complete -c elastic-run -n __elastic_run_own -l exit-barrier-timeout -x -d 'wait for the other nodes at the end'
complete -c elastic-run -n __elastic_run_own -l max-restarts -x -d 'restarts caused by worker failures, whole job'
complete -c elastic-run -n __elastic_run_own -l monitor-interval -x -d 'no effect: nothing is polled'
complete -c elastic-run -n __elastic_run_own -l start-method -x -d 'no effect: workers are always fork and exec'
complete -c elastic-run -n __elastic_run_own -l signals-to-handle -x -d 'signals that make the agent stop its workers'
complete -c elastic-run -n __elastic_run_own -l shutdown-timeout -x -d 'between stop signal and KILL'
complete -c elastic-run -n __elastic_run_own -l log-dir -r -d 'where logs are kept'
complete -c elastic-run -n __elastic_run_own -s r -l redirects -x -d 'streams that go to files: 0, 1, 2, 3 or RANK:VALUE,...'
complete -c elastic-run -n __elastic_run_own -s t -l tee -x -d 'streams that go to file and console'
complete -c elastic-run -n __elastic_run_own -l local-ranks-filter -x -d 'local ranks shown on the console'
complete -c elastic-run -n __elastic_run_own -l log-line-prefix-template -x -d 'in front of each line on the console'
complete -c elastic-run -n __elastic_run_own -l duplicate-stdout-filters -x -d 'copy matching lines of stdout'
complete -c elastic-run -n __elastic_run_own -l duplicate-stderr-filters -x -d 'copy matching lines of stderr'
complete -c elastic-run -n __elastic_run_own -l event-log-handler -x -d 'no effect: events are always written with the logs'
complete -c elastic-run -n __elastic_run_own -l logs-specs -x -d 'no effect: see log.*'
complete -c elastic-run -n __elastic_run_own -l fresh -d 'start from the beginning: where checkpoint.dir holds checkpoints, the folder is first renamed, whole, to <dir>.before-<N>; without checkpoint.dir no effect'
complete -c elastic-run -n __elastic_run_own -l resume -d 'start from the newest checkpoint; refused (78) when checkpoint.dir has none or is not set'
complete -c elastic-run -n __elastic_run_own -l update-spec -d 'where the job runs with other settings than this node\'s that must agree, these become its next ones: they hold from the next generation that at least MIN nodes with them can form; without this option such a node is refused (76)'
complete -c elastic-run -n __elastic_run_own -l check -d 'check the configuration and this host, start nothing'
complete -c elastic-run -n __elastic_run_own -l dry-run -d 'print each worker\'s command and environment, start nothing'
complete -c elastic-run -n __elastic_run_own -l print-config -d 'print the effective configuration with the origin of each value'
complete -c elastic-run -n __elastic_run_own -l version -d 'print the version'
complete -c elastic-run -n __elastic_run_own -s h -l help -a 'keys types substitution exit-codes options job node rendezvous restart resize stop preempt hang health checkpoint log observe limits run' -d 'print help, or more about a topic or key'
complete -c elastic-run -n __elastic_run_own -l print-completion -x -a 'bash zsh fish' -d 'print completions for bash, zsh or fish'
