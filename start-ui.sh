#!/bin/sh
# Finds a Python that can run launcher/, which does the rest (launcher/README.md describes the order).
#   ./start-ui.sh              opens the window
#   ./start-ui.sh test ...     runs the tests
#   ./start-ui.sh VERB ...     python -m trainer VERB ...; benchmark and make-demo-model: their own packages

self=$0
while [ -L "$self" ]; do
    target=$(readlink "$self")
    case $target in
        /*) self=$target ;;
        *) self=$(dirname "$self")/$target ;;
    esac
done
DARKROOM_CALLER_DIR=$(pwd)
unset CDPATH
cd "$(dirname "$self")" || exit 1
export DARKROOM_CALLER_DIR
unset PYTHONHOME PYTHONSAFEPATH PYTHONSTARTUP

own=.venv/bin/python
[ -e .venv/.darkroom-unfinished ] && own= # it may be half of an environment, which another Python completes
found=
for python in "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "${CONDA_PREFIX:+$CONDA_PREFIX/bin/python}" \
    "$own" python3 python3.14 python3.13 python3.12 python3.11 python .venv/bin/python; do
    command -v "${python:-no such program}" >/dev/null 2>&1 || continue
    if "$python" -I -S -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
        exec "$python" -s -m launcher "$@"
    fi
    version=$("$python" --version 2>&1) && [ -z "$found" ] && found="$version ($python)"
done

# No Python on this machine can run the launcher: print one message, with the command that installs it.
sudo=
[ "$(id -u)" = 0 ] || sudo="sudo "
if command -v conda >/dev/null 2>&1; then
    command="conda create -n darkroom python=3.12 tk && conda activate darkroom"
elif command -v apt-get >/dev/null 2>&1; then
    command="${sudo}apt-get install python3 python3-venv python3-tk"
    for minor in 11 14 13 12; do # the last one that apt offers is used; without one, the default python3
        [ -n "$found" ] && apt-cache show "python3.$minor-venv" >/dev/null 2>&1 &&
            command="${sudo}apt-get install python3.$minor-venv python3.$minor-tk"
    done
elif command -v dnf >/dev/null 2>&1; then
    command="${sudo}dnf install python3.12 python3.12-tkinter"
elif command -v pacman >/dev/null 2>&1; then
    command="${sudo}pacman -S python tk"
elif command -v zypper >/dev/null 2>&1; then
    command="${sudo}zypper install python312 python312-tk"
elif command -v brew >/dev/null 2>&1; then
    command="brew install python@3.12 python-tk@3.12"
else
    command="(get Python 3.12 from https://www.python.org/downloads/ and start again)"
fi
echo "Darkroom needs Python 3.11 to 3.14, but this machine has ${found:-none}; install it with: $command" >&2
exit 1
