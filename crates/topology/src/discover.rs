// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts hwloc's objects to plain facts, sets of CPUs with a few attributes, from which
//! `assemble.rs` builds the topology.
//!
//! Offline CPUs are left out. A CPU number above [`CPU_ID_MAX`], an object without a number, and
//! input that hwloc rejects are errors. The time is that of hwloc; this file sets no limit of time
//! or memory (module `sandbox` does for foreign input).

use std::collections::BTreeMap;
use std::path::Path;

use hwlocality::Topology as Hwloc;
use hwlocality::bitmap::Bitmap;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder};
use usher_model::cpuset::CPU_ID_MAX;
use usher_model::{Cache, CpuId, CpuSet};

use crate::assemble::{CoreKind, HwlocFacts, Node};
use crate::capacity;

/// Loads the machine that the builder describes and returns its facts. `root` is the root of the
/// machine's `/sys`, if it has one.
///
/// CPUs outside this process's cpuset are included; offline CPUs are not. With a root, the flag
/// `DONT_CHANGE_BINDING` keeps hwloc from moving this thread to every CPU; Linux provides the facts
/// without such moves.
///
/// # Errors
/// Returns one line without context: hwloc's reason, or a CPU number above the limit.
pub(crate) fn load(
    builder: TopologyBuilder,
    name: String,
    root: Option<&Path>,
) -> Result<(Hwloc, HwlocFacts), String> {
    let mut flags = BuildFlags::INCLUDE_DISALLOWED;
    // With this flag, hwloc does not read dumps of cpuid, for which it moves no thread either.
    if root.is_some() {
        flags |= BuildFlags::DONT_CHANGE_BINDING;
    }
    let hwloc = builder
        .with_flags(flags)
        .map_err(|why| format!("hwloc rejects the flags that Usher sets: {why}"))?
        .build()
        .map_err(|why| {
            let reason = why.errno.map(|errno| errno.to_string());
            let reason = reason.unwrap_or_else(|| why.to_string());
            format!("hwloc cannot load the topology: {reason}")
        })?;
    let mut parts = parts(&hwloc, name)?;
    if let Some(root) = root {
        let all = parts.pus.iter().copied().collect();
        parts.kinds = capacity::add_core_types(parts.kinds, &all, root);
        parts.kinds = capacity::cppc::add(parts.kinds, &all, root);
    }
    Ok((hwloc, parts))
}

fn parts(hwloc: &Hwloc, name: String) -> Result<HwlocFacts, String> {
    let pus = hwloc
        .objects_with_type(ObjectType::PU)
        .map(os_number)
        .collect::<Result<Vec<_>, _>>()?;
    let all: CpuSet = pus.iter().copied().collect();
    let sets_of = |of| -> Vec<CpuSet> {
        hwloc
            .objects_with_type(of)
            .map(|o| cpus_of(o, &all))
            .collect()
    };
    Ok(HwlocFacts {
        name,
        pus,
        cores: sets_of(ObjectType::Core),
        caches: caches(hwloc, &all),
        dies: sets_of(ObjectType::Die),
        packages: hwloc
            .objects_with_type(ObjectType::Package)
            .map(|package| (cpus_of(package, &all), model_of(hwloc, package)))
            .collect(),
        nodes: nodes(hwloc, &all)?,
        kinds: kinds(hwloc, &all),
        offline: numbers(&hwloc.complete_cpuset()).minus(&all),
        disallowed: all.minus(&numbers(&hwloc.allowed_cpuset())),
        notes: Vec::new(),
    })
}

/// Returns whether the subtype of a cache is that of memory-side caches. Such a cache belongs to
/// memory (Knights Landing in cache mode, HBM in front of DDR memory), and the cores near to the
/// memory do not share it in the way of a last-level cache.
pub(crate) fn is_memory_side(subtype: Option<&str>) -> bool {
    subtype.is_some_and(|subtype| subtype == "MemorySideCache")
}

/// Data and unified caches from level 2 up, without memory-side caches.
fn caches(hwloc: &Hwloc, all: &CpuSet) -> Vec<(Cache, CpuSet)> {
    let levels = [
        (2, ObjectType::L2Cache),
        (3, ObjectType::L3Cache),
        (4, ObjectType::L4Cache),
        (5, ObjectType::L5Cache),
    ];
    let of_level = |(level, object_type)| {
        let objects = hwloc.objects_with_type(object_type).filter(|object| {
            let subtype = object.subtype().or_else(|| object.info("Type"));
            !is_memory_side(subtype.map(text).as_deref())
        });
        objects.map(move |object| {
            let bytes = match object.attributes() {
                Some(ObjectAttributes::Cache(cache)) => cache.size().map_or(0, u64::from),
                _ => 0,
            };
            (Cache { level, bytes }, cpus_of(object, all))
        })
    };
    levels.into_iter().flat_map(of_level).collect()
}

fn nodes(hwloc: &Hwloc, all: &CpuSet) -> Result<Vec<Node>, String> {
    hwloc
        .objects_with_type(ObjectType::NUMANode)
        .map(|object| {
            let bytes = match object.attributes() {
                Some(ObjectAttributes::NUMANode(node)) => node.local_memory().map_or(0, u64::from),
                _ => 0,
            };
            Ok(Node {
                os: os_number(object)?,
                near: cpus_of(object, all),
                bytes,
            })
        })
        .collect()
}

fn kinds(hwloc: &Hwloc, all: &CpuSet) -> Vec<CoreKind> {
    let Ok(kinds) = hwloc.cpu_kinds() else {
        return Vec::new();
    };
    kinds
        .map(|kind| CoreKind {
            cpus: cpus_in(&kind.cpuset, all),
            // The rank of hwloc is derived from the same attributes, unless a file gives the rank
            // (module `xml`).
            efficiency: None,
            infos: kind
                .infos
                .iter()
                .map(|info| (text(info.name()), text(info.value())))
                .collect::<BTreeMap<_, _>>(),
        })
        .collect()
}

/// The processor's name, from the package or the machine.
fn model_of(hwloc: &Hwloc, package: &TopologyObject) -> Option<String> {
    let named = |object: &TopologyObject| object.info("CPUModel").map(text);
    named(package)
        .or_else(|| named(hwloc.root_object()))
        .map(|name| name.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|name| !name.is_empty())
}

fn text(of: &std::ffi::CStr) -> String {
    of.to_string_lossy().into_owned()
}

fn os_number(object: &TopologyObject) -> Result<CpuId, String> {
    let number = object.os_index().ok_or_else(|| {
        format!(
            "hwloc reports an object of type {} without a number",
            object.object_type()
        )
    })?;
    match CpuId::try_from(number) {
        Ok(number) if number <= CPU_ID_MAX => Ok(number),
        _ => Err(format!(
            "the number {number} of an object of type {} exceeds the maximum of {CPU_ID_MAX}",
            object.object_type()
        )),
    }
}

/// Returns the CPUs of an object, restricted to `all`, the CPUs of the machine.
fn cpus_of(object: &TopologyObject, all: &CpuSet) -> CpuSet {
    object
        .cpuset()
        .map_or_else(CpuSet::new, |set| cpus_in(&set, all))
}

/// The numbers of a set up to the largest number of a CPU. A set may be infinite.
fn numbers(set: &hwlocality::cpu::cpuset::CpuSet) -> CpuSet {
    let bitmap: &Bitmap = set.as_ref();
    bitmap
        .iter_set()
        .map(usize::from)
        .take_while(|&cpu| cpu <= CPU_ID_MAX as usize)
        .map(|cpu| cpu as CpuId)
        .collect()
}

fn cpus_in(set: &hwlocality::cpu::cpuset::CpuSet, all: &CpuSet) -> CpuSet {
    // An hwloc bitmap may be infinite; the machine's last CPU limits it.
    let last = all.last().map_or(0, |cpu| cpu as usize);
    let bitmap: &Bitmap = set.as_ref();
    bitmap
        .iter_set()
        .map(usize::from)
        .take_while(|&cpu| cpu <= last)
        .map(|cpu| cpu as CpuId)
        .filter(|&cpu| all.contains(cpu))
        .collect()
}
