# fish completion for elastic-ctl
# Written by agent/keys_doc from the tables in agent/: change those.
complete -c elastic-ctl -f -a status -d 'what the job is doing: phase, generation, restarts, workers'
complete -c elastic-ctl -f -a stop -d 'end the job: the stop ladder, then exit code 79 for all its agents'
complete -c elastic-ctl -f -a drain -d 'a node leaves the job at the end of a step, and its agent ends: this one'
complete -c elastic-ctl -f -a scale -d 'the job goes on with so many nodes; those above MAX wait as spares'
complete -c elastic-ctl -f -a audit -d 'was every sample of every epoch used exactly once? Exit code 1: no, or it cannot be proved'
complete -c elastic-ctl -f -a ckpt -d 'checkpoints on disk, of a job or of a folder; elastic-ctl ckpt --help tells more'
complete -c elastic-ctl -s f -r -d 'the job of this file'
complete -c elastic-ctl -l job -r -d 'the job of this name; without -f and --job the only one that runs on this host'
complete -c elastic-ctl -l json -d 'one JSON object instead of a table'
complete -c elastic-ctl -l wait -d 'until the job is over; of status: exit code 1 when it failed, also of a job that has ended, when its logs are where the file (or the default) says'
complete -c elastic-ctl -l version -d 'print the version'
complete -c elastic-ctl -l help -d 'print this'
