// SPDX-License-Identifier: GPL-2.0-only
//! Checks that the running kernel has the functions that the scheduler's BPF programs call, so that
//! a missing function is reported by name, in one line, before anything is loaded.
//!
//! The kernel's BTF lists its functions. A function that changed its name between Linux versions is
//! one entry with all its names; one of them must exist. Functions that the programs call only
//! where they exist (weak symbols without an alternative) are not listed.

use libbpf_rs::btf::{Btf, types::Func};

use crate::ScxError;

/// The functions, each with its names from the newest to the oldest.
const REQUIRED: [&[&str]; 22] = [
    &["scx_bpf_create_dsq"],
    &["scx_bpf_kick_cpu"],
    &["scx_bpf_get_idle_cpumask"],
    &["scx_bpf_get_idle_smtmask"],
    &["scx_bpf_put_idle_cpumask"],
    &["bpf_cpumask_empty"],
    &["bpf_cpumask_test_cpu"],
    &["scx_bpf_test_and_clear_cpu_idle"],
    &["scx_bpf_task_cpu"],
    &["scx_bpf_nr_cpu_ids"],
    &["scx_bpf_dump_bstr"],
    &["scx_bpf_dsq_nr_queued"],
    &["bpf_rcu_read_lock"],
    &["bpf_rcu_read_unlock"],
    &["bpf_iter_scx_dsq_new"],
    &["bpf_iter_scx_dsq_next"],
    &["bpf_iter_scx_dsq_destroy"],
    &[
        "scx_bpf_dsq_insert___v2",
        "scx_bpf_dsq_insert",
        "scx_bpf_dispatch",
    ],
    &[
        "__scx_bpf_dsq_insert_vtime",
        "scx_bpf_dsq_insert_vtime",
        "scx_bpf_dispatch_vtime",
    ],
    &[
        "scx_bpf_dsq_move_to_local___v2",
        "scx_bpf_dsq_move_to_local",
        "scx_bpf_consume",
    ],
    &["scx_bpf_dsq_move", "scx_bpf_dispatch_from_dsq"],
    &["scx_bpf_dsq_move_vtime", "scx_bpf_dispatch_vtime_from_dsq"],
];

/// Checks the running kernel.
///
/// # Errors
/// The kernel lacks a function, or its BTF cannot be read.
pub fn check_functions() -> Result<(), ScxError> {
    let btf =
        Btf::from_vmlinux().map_err(ScxError::bpf("reading the kernel's BTF type information"))?;
    match missing(|name| btf.type_by_name::<Func<'_>>(name).is_some()) {
        None => Ok(()),
        Some(name) => Err(ScxError::NoFunction { name }),
    }
}

/// Returns the newest name of the first function that does not exist.
fn missing(exists: impl Fn(&str) -> bool) -> Option<&'static str> {
    let mut required = REQUIRED.iter();
    let absent = required.find(|names| !names.iter().any(|name| exists(name)))?;
    absent.last().copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn any_name_of_a_function_is_sufficient() {
        let all: Vec<&str> = REQUIRED.concat();
        assert_eq!(missing(|name| all.contains(&name)), None);
        assert_eq!(missing(|name| !name.ends_with("v2")), None);
        let without = |absent: &'static str| missing(move |name| !name.contains(absent));
        assert_eq!(without("kick_cpu"), Some("scx_bpf_kick_cpu"));
        let old = |name: &str| !name.contains("move_to_local") && name != "scx_bpf_consume";
        assert_eq!(missing(old), Some("scx_bpf_consume"));
    }

    /// The declarations of kernel.h that are not weak, and therefore must exist. The macros of the
    /// header do not declare functions.
    #[test]
    fn lists_the_functions_that_the_header_declares() {
        let header = include_str!("bpf/kernel.h");
        let declared = header.split("extern ").skip(1).filter_map(|text| {
            let text = text.split_once(';')?.0;
            let words = text.split_once('(')?.0;
            let name = words.rsplit([' ', '*', '\n']).next()?;
            let is_needed = text.ends_with("__ksym") && !text.contains("__weak");
            is_needed.then_some(name)
        });
        let declared: BTreeSet<&str> = declared.collect();
        let listed: BTreeSet<&str> = REQUIRED.concat().into_iter().collect();
        // Only the scheduler of the benchmarks calls this function.
        let missing: Vec<&&str> = declared
            .difference(&listed)
            .filter(|name| **name != "scx_bpf_select_cpu_dfl")
            .collect();
        assert!(declared.len() > 10 && missing.is_empty(), "{missing:?}");
    }
}
