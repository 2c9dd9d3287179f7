// SPDX-License-Identifier: GPL-2.0-only
/*
 * The meter's programs, one file a concern. All are trace points with types
 * (tp_btf), one iterator, and one program that is run to start a timer: no
 * kprobes, no fentry, which kernels may refuse.
 */
#include "kin.bpf.c"
#include "crowd.bpf.c"
#include "cpu.bpf.c"
#include "disk.bpf.c"
#include "link.bpf.c"

char _license[] SEC("license") = "GPL";
