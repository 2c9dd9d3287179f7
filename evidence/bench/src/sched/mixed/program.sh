#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# A program of the mix: makes ready in a folder of its own, and does its work once for
# each line that it reads.
#
#   program.sh make|postgres|jvm FOLDER     FOLDER: where compiled classes are
set -eu
kind=$1
classes=$2
scratch=$(mktemp -d)
log=$scratch/log

quietly() {
    "$@" >"$log" 2>&1 </dev/null || {
        tail -n 3 "$log" >&2
        exit 1
    }
}

serve() {
    echo ready
    while read -r _; do
        quietly "$@"
        echo done
        echo ready
    done
}

build() {
    rm -f "$scratch"/*.o
    make -s -j 3 -C "$scratch"
}

server() {
    setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
}

case $kind in
make)
    for n in 1 2 3 4 5 6; do
        for f in 1 2 3 4 5 6 7 8; do
            echo "int f$f(int x) { int s = $n; for (int i = 0; i < x; i++) s += i * x % $f$n; return s; }"
        done >"$scratch/file$n.c"
    done
    {
        echo 'all: $(patsubst %.c,%.o,$(wildcard *.c))'
        printf '%%.o: %%.c\n\tcc -O1 -c -o $@ $<\n'
    } >"$scratch/Makefile"
    serve build
    ;;
postgres)
    bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
    chmod 777 "$scratch"
    : >"$log"
    chmod 666 "$log"
    quietly server "$bin/initdb" -D "$scratch/data" -A trust -U bench
    server "$bin/postgres" -D "$scratch/data" -k "$scratch" -c listen_addresses= -c fsync=off \
        >/dev/null 2>&1 </dev/null &
    until "$bin/pg_isready" -q -h "$scratch" </dev/null; do sleep 0.1; done
    quietly "$bin/pgbench" -i -q -h "$scratch" -U bench postgres
    serve "$bin/pgbench" -n -S -c 4 -t 250 -h "$scratch" -U bench postgres
    ;;
jvm)
    exec java -Xmx128m -Xshare:auto -cp "$classes" Crowd
    ;;
esac
