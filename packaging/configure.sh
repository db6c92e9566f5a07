#!/bin/sh
# Set up a Meson build folder once, and again only when an option is asked for that it was not set up with.
#
#   packaging/configure.sh FOLDER [-Doption=value]...
set -eu

folder=$1
shift
stamp=$folder/.options

if [ ! -f "$folder/build.ninja" ]; then
    rm -f "$stamp"
    meson setup "$folder" "$@"
else
    touch "$stamp"
    have=" $(tr '\n' ' ' <"$stamp")"
    for option in "$@"; do
        case $have in
        *" $option "*) ;;
        *) changed=true ;;
        esac
    done
    [ -n "${changed:-}" ] || exit 0
    meson setup --reconfigure "$folder" "$@"
fi
touch "$stamp"
for option in "$@"; do # the value that holds, not those before it
    kept=$(grep -v -- "^${option%%=*}=" "$stamp" || true)
    printf '%s\n' ${kept:+"$kept"} "$option" >"$stamp"
done
