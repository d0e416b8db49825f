#!/bin/sh
# need.sh python|java: succeed when the machine has it; else install it (root on Debian) or say how to.
# `python` prints the interpreter's name; PYTHON=python3.13 asks for that one.
set -eu

install_or_tell() { # what package
    if [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then
        "$(dirname "$0")/patiently.sh" 10 "installing $2, because $1 is missing" sh -ec \
            "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $2" >&2
    else
        echo "$1 is missing; install it with: sudo apt-get install -y $2   (or your system's package of it)" >&2
        exit 1
    fi
}

find_python() {
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if command -v "$name" >/dev/null 2>&1 &&
            "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return 0
        fi
    done
    return 1
}

java_is_new_enough() {
    command -v java >/dev/null 2>&1 || return 1
    version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
    [ "${version:-0}" -ge 17 ]
}

case "$1" in
python)
    find_python && exit
    [ -z "${PYTHON:-}" ] || { echo "$PYTHON is not Python 3.11 or newer with venv" >&2 && exit 1; }
    install_or_tell "Python 3.11 or newer with venv" "python3 python3-venv" && find_python
    ;;
java) java_is_new_enough || { install_or_tell "Java 17 or newer" "openjdk-17-jre-headless" && java_is_new_enough; } ;;
*)
    echo "usage: need.sh python|java" >&2
    exit 2
    ;;
esac
