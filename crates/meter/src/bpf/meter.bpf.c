// SPDX-License-Identifier: GPL-2.0-only
/*
 * All BPF programs of the meter, one file per concern. They are trace points with
 * BTF types (tp_btf), one iterator, and one syscall program that starts a timer.
 * There are no kprobes and no fentry programs, because some kernels refuse them.
 */
#include "pid_map.bpf.c"
#include "rq_imbalance.bpf.c"
#include "cpu.bpf.c"
#include "disk.bpf.c"
#include "link.bpf.c"

char _license[] SEC("license") = "GPL";
