# bash completion for elastic-ctl
# Written by agent/keys_doc from the tables in agent/: change those.
_elastic_ctl()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    case $prev in
    -f) COMPREPLY=($(compgen -f -- "$cur")) ;;
    --job) COMPREPLY=() ;;
    *) COMPREPLY=($(compgen -W 'status explain ps events wait stop drain scale set reload audit ckpt -f --job --endpoints --set --json --wait --watch --follow --state --nodes --timeout --preempt --deadline --unset --version --help' -- "$cur")) ;;
    esac
}
complete -F _elastic_ctl elastic-ctl
