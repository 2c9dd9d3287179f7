// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of one-line descriptions, among them a comparison with hwloc's own parser.

use hwlocality::topology::builder::TopologyBuilder;
use proptest::prelude::*;
use usher_model::Topology;

use super::*;
use crate::{assemble, discover};

/// Exports of hwloc (`lstopo --of synthetic`) of machines in its tests.
const EXPORTS: [&str; 12] = [
    "Package:2 L3Cache:2(size=33554432) [NUMANode(memory=134894530560)] Group:8 L2Cache:4(size=524288) L1dCache:1(size=65536) L1iCache:1(size=65536) Core:1 PU:1",
    "[NUMANode(memory=17174994944)] Package:4 L3Cache:1(size=4194304) L2Cache:2(size=1048576) L1dCache:1(size=16384) Core:1 PU:2(indexes=4*4:2*2:1*2)",
    "Group:4 Group:2 [NUMANode(memory=59861106688 indexes=0,1,4,5,8,9,12,13)] Package:8 L3Cache:1(size=4194304) L2Cache:1(size=262144) L1dCache:1(size=32768) L1iCache:1(size=32768) Core:1 PU:4",
    "Core:1 [NUMANode] PU:2",
    "Package:4 L3Cache:2(size=5240832) [NUMANode(memory=8587735040 indexes=0,1,2,33,34,45,72,73)] L2Cache:6(size=524288) L1dCache:1(size=65536) L1iCache:1(size=65536) Core:1 PU:1",
    "Group:4 [NUMANode(memory=1073741824)] Package:2 L3Cache:1(size=8388608) L2Cache:2(size=262144) L1dCache:2(size=32768) L1iCache:1(size=32768) Core:1 PU:2(indexes=4*2:2*2:1*2:8*8)",
    "Package:1 Group:4 [NUMANode(memory=1073741824 indexes=0,7,1,4,2,5,3,6)] [NUMANode(memory=2147483648)] L2Cache:2(size=4194304) L1dCache:2(size=32768) L1iCache:1(size=32768) Core:1 PU:4(indexes=4*16:1*4)",
    "Group:2 [NUMANode(memory=16951738368)] Package:2 L3Cache:2(size=9437184) L2dCache:1(size=262144) L2iCache:1(size=1048576) L1dCache:1(size=16384) L1iCache:1(size=16384) Core:1 PU:1(indexes=2*2:1*2:4*2)",
    "Group:4 [NUMANode(memory=135271940096)] Package:4 L3Cache:1(size=16777216) L2Cache:3(size=3145728) L1dCache:2(size=32768) L1iCache:1(size=32768) Core:1 PU:1(indexes=6*4:1*6:24*4)",
    "Package:4 Die:2 L3Cache:1(size=16777216) Group:2 [NUMANode(memory=262991872)] L2Cache:2(size=4194304) Core:1 L1dCache:2(size=32768) L1iCache:1(size=32768) PU:1",
    "Package:2 [NUMANode(memory=796716433408)] Group:2 [NUMANode(memory=99786076160 indexes=5,6,7,8,9,10)] Core:2 PU:1(indexes=1*2:4*2:2*2)",
    "Package:2 [NUMANode(memory=132955242496 indexes=0,8)] L3Cache:2(size=10485760) L2Cache:1(size=524288) L1dCache:2(size=32768) L1iCache:1(size=32768) Core:1 PU:4(indexes=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,88,89,90,91,92,93,94,95,96,97,98,99,100,101,102,103)",
];

fn ours(description: &str) -> Result<Topology, String> {
    facts(description).map(assemble::topology)
}

fn hwlocs(description: &str) -> Option<Topology> {
    let builder = TopologyBuilder::new().from_synthetic(description).ok()?;
    let (_, mut facts) = discover::load(builder, String::new(), None).ok()?;
    facts.name = description.to_owned();
    Some(assemble::topology(facts))
}

#[test]
fn exports_of_hwloc_give_the_machine_that_hwloc_builds() {
    for description in EXPORTS {
        let machine = ours(description).unwrap();
        machine.check().unwrap();
        assert_eq!(Some(machine), hwlocs(description), "{description}");
    }
}

#[test]
fn names_attributes_and_brackets_have_the_meaning_of_hwloc() {
    for description in [
        "package:4 die:2 core:6 pu:1",
        "2 4 1",
        "2 3 2 2 2 2 2 2",
        "[numa] 2 4 2",
        "numa:2 package:1 l3:2(size=32MB) l2:4 core:1 pu:2",
        "(memory=1GB) package:2 [numa:1(memory=8GB)] core:8 pu:2(indexes=2*16:1*2)",
        "Package:2 NUMANode:1 L3Cache:1 L2d:2 Core:2 PU:2",
        "NUMANode:4(indexes=3,1,0,2) SOCKET:1 L3u:1(size=16MiB) L1i:2 core:2 pu:2",
        "pack:2 [numa(memory=1TiB)] l2cache:2 [numa(memory=2kB)] core:2 pu:1",
        "Group0:2 Group1:2 Tile:2 core:2 pu:1(indexes=core:tile)",
        "node:2 core:2 pu:2(indexes=numa:core)",
        "package:2 core:3 pu:2(indexes=core:package)",
        "[numa(memory=0x100000)]package:2(indexes=1,0)core:2 pu:1(indexes=5,1,0,4)",
    ] {
        let machine = ours(description).unwrap();
        machine.check().unwrap();
        assert_eq!(Some(machine), hwlocs(description), "{description}");
    }
}

#[test]
fn memory_side_caches_the_machine_level_and_unknown_attributes_have_no_effect() {
    let plain = "Package:1 [NUMANode(memory=1073741824)] L2Cache:2 Core:2 PU:1";
    let domains = ours(plain).unwrap().domains;
    assert_eq!(domains.len(), 2);
    for description in [
        "Package:1 [NUMANode(memory=1073741824 memorysidecachesize=17179869184)] L2Cache:2 Core:2 PU:1",
        "Machine:1 Package:1 [NUMANode(memory=1GiB tier=0)] L2Cache:2 Core:2 PU:1",
        "Machine(memory=4GB) Package:1 [MemCache(size=16GiB)] [NUMANode(memory=1GiB)] L2:2 Core:2 PU:1",
    ] {
        assert_eq!(ours(description).unwrap().domains, domains, "{description}");
    }
}

#[test]
fn one_bracket_may_contain_a_memory_side_cache_and_its_nodes() {
    let separate = "Package:2 [NUMANode(memory=8GB)] [NUMANode(memory=16GB)] L2Cache:2 Core:2 PU:1";
    let separate = ours(separate).unwrap();
    for description in [
        "Package:2 [MemCache(size=1GB) NUMANode(memory=8GB)] [NUMANode(memory=16GB)] L2Cache:2 Core:2 PU:1",
        "Package:2 [ MemCache:1(size=1GB) NUMANode:1(memory=8GB) NUMANode(memory=16GB) ] L2Cache:2 Core:2 PU:1",
        "Package:2 [MemCache [NUMANode(memory=8GB)] [NUMANode(memory=16GB)]] L2Cache:2 Core:2 PU:1",
        "Package:2 [NUMANode(memory=8GB memorysidecachesize=4096)][NUMANode(memory=16GB)] L2Cache:2 Core:2 PU:1",
    ] {
        let machine = ours(description).unwrap();
        machine.check().unwrap();
        assert_eq!(
            (&machine.nodes, &machine.domains),
            (&separate.nodes, &separate.domains),
            "{description}"
        );
    }
    // Exports without attributes have empty parentheses in some versions.
    let bare = ours("[MemCache() NUMANode()] core:4").unwrap();
    assert_eq!((bare.nodes.len(), bare.cores.len()), (1, 4));
}

#[test]
fn caches_without_a_number_are_numbered_from_the_cores() {
    for (generic, numbered) in [
        ("Socket:2 Cache:1 Core:2 PU:2", "Socket:2 L2:1 Core:2 PU:2"),
        (
            "Socket:2 Cache:1 Cache:2 Cache:1 Core:2 PU:2",
            "Socket:2 L3:1 L2:2 L1:1 Core:2 PU:2",
        ),
        (
            "Package:2 Cache:2 Cache:4 Cache:1 Cache:1 Core:1 PU:1",
            "Package:2 L3:2 L2:4 L1d:1 L1i:1 Core:1 PU:1",
        ),
        (
            "Socket:1 Cache:2(size=4194304) Cache:2(size=65536) Cache:1(size=65536) Core:1 PU:1",
            "Socket:1 L2:2(size=4194304) L1d:2(size=65536) L1i:1(size=65536) Core:1 PU:1",
        ),
        (
            "Socket:2 NUMANode:1(memory=1GB) Cache:1(size=8MB) Cache:2(size=1MB) Core:1 PU:1",
            "Socket:2 NUMANode:1(memory=1GB) L2:1(size=8MB) L1:2(size=1MB) Core:1 PU:1",
        ),
    ] {
        let (generic, numbered) = (ours(generic).unwrap(), ours(numbered).unwrap());
        assert_eq!(
            (generic.domains, generic.cores),
            (numbered.domains, numbered.cores)
        );
    }
    let six = check(&format!("{}core:1", "cache:1 ".repeat(7))).unwrap_err();
    assert!(six.contains("more than 5 caches"), "{six}");
}

#[test]
fn unknown_attributes_are_reported() {
    let facts = facts("Package:2(tier=0) L2Cache:2(size=4MB inclusive=1) Core:2 PU:1").unwrap();
    let expected = [
        "at character 11: the attribute 'tier' is unknown and has no effect",
        "at character 38: the attribute 'inclusive' is unknown and has no effect",
    ];
    assert_eq!(facts.notes, expected);
}

#[test]
fn adds_omitted_hardware_thread_level() {
    for (short, complete) in [
        ("package:2 core:4", "package:2 core:4 pu:1"),
        ("package:2 l3:4", "package:2 l3:4 pu:1"),
    ] {
        let (short, complete) = (ours(short).unwrap(), ours(complete).unwrap());
        assert_eq!(
            (short.cpus, short.domains),
            (complete.cpus, complete.domains)
        );
    }
}

#[test]
fn the_largest_descriptions_are_built() {
    for description in [
        "core:8192",
        "package:8192",
        "package:64 l3:128",
        "numa:8192 core:1 pu:1",
        "1 1 1 8192 1 1",
    ] {
        let machine = ours(description).unwrap();
        machine.check().unwrap();
        assert_eq!(machine.cpus.len(), 8192, "{description}");
    }
}

/// Invalid descriptions, each with a part of its error.
const INVALID: &[(&str, &str)] = &[
    ("", "contains no level"),
    ("  ", "contains no level"),
    ("[numa]", "contains no level"),
    (
        "core:2 package:0",
        "at character 16: the count of the level 'package:0' is 0",
    ),
    (
        "core:99999999",
        "more than 8192 CPUs at the level 'core:99999999'",
    ),
    (
        "core:99999999999999999999",
        "more than 8192 CPUs at the level 'core:99999999999999999999'",
    ),
    (
        "core:+4",
        "'+4' is not a valid count of the level 'core:+4'",
    ),
    ("core:1.5", "'1.5' is not a valid count"),
    ("core:0x4", "'0x4' is not a valid count"),
    (
        "l3:2(size=) pu:1",
        "at character 11: the attribute 'size=' has no value",
    ),
    ("l3:2(size=+3) pu:1", "'+3' is not a valid size"),
    ("l3:2(size=0x) pu:1", "'0x' is not a valid size"),
    (
        "[numa(memory=)] pu:1",
        "the attribute 'memory=' has no value",
    ),
    ("pu:2(indexes=)", "the attribute 'indexes=' has no value"),
    ("pu:4(indexes=+2*2:1*2)", "is not a valid loop"),
    (
        "core:4(size=3)",
        "at character 8: the attribute 'size' does not apply to this level",
    ),
    (
        "l3:2(memory=3) pu:1",
        "the attribute 'memory' does not apply",
    ),
    ("[] pu:2", "the brackets are empty"),
    ("[MemCache L3Cache] pu:2", "'L3Cache' cannot be attached"),
    ("[MemCache [numa] pu:2", "'pu' cannot be attached"),
    ("[MemCache(size=4) numa", "the bracket '[' is not closed"),
    ("memcache:2 pu:2", "a memory-side cache cannot be a level"),
    (
        "package:64 core:128 pu:2",
        "at character 21: the description has more than 8192 CPUs at the level 'pu:2'",
    ),
    ("package", "the level 'package' has no count"),
    (
        "package: core:2",
        "at character 9: the level 'package:' has no count, as in package:2",
    ),
    (
        "core:-1",
        "'-1' is not a valid count of the level 'core:-1'",
    ),
    (
        "core:4 package:2 pu:1",
        "at character 8: the level 'package:2' cannot be inside the level 'core:4'",
    ),
    (
        "core:4 core:2",
        "the level 'core:2' cannot be inside the level 'core:4'",
    ),
    (
        "pu:2 l3:2",
        "the level 'l3:2' cannot be inside the level 'pu:2'",
    ),
    (
        "packege:2 core:4",
        "the level 'packege:2' is unknown; a similar level exists: package",
    ),
    (
        "package:2 croe:4",
        "at character 11: the level 'croe:4' is unknown; a similar level exists: core",
    ),
    (
        "kernel:4 pu:2",
        "the level 'kernel:4' is unknown; the levels are machine, package, die, numa, group (also \
         tile, module and cluster), l5, l4, l3, l2, l1, cache, core and pu",
    ),
    ("l6:2 pu:2", "the level 'l6:2' is unknown"),
    (
        "core:2(size=3",
        "at character 7: the parenthesis '(' is not closed",
    ),
    (
        "core:2)",
        "at character 7: the bracket ')' has no matching bracket",
    ),
    ("[numa:2 core:2", "the bracket '[' is not closed"),
    ("[core] pu:2", "'core' cannot be attached in brackets"),
    ("[numa:2] pu:2", "repeat the brackets"),
    ("numa:2 [numa] pu:2", "both a level and attached"),
    ("numa:2 numa:2 pu:2", "two levels of NUMA nodes"),
    (
        "core:2\0",
        "at character 7: the description contains the invalid character '\\0'",
    ),
    ("corée:2", "the invalid character 'é'"),
    ("2 core:2", "with and without a type"),
    ("core:1 machine:1", "the machine must be the first level"),
    ("l3:2(sise=3) pu:1", "a similar attribute exists: size"),
    (
        "l3:2(size=3XB) pu:1",
        "at character 11: '3XB' is not a valid size",
    ),
    ("l3:2(size=99999999999TB) pu:1", "is not a valid size"),
    ("l3:2(size) pu:1", "'size' is not a valid attribute"),
    (
        "pu:2(indexes=0,4294967295)",
        "at character 16: '4294967295' is not a valid number",
    ),
    ("pu:2(indexes=0,0)", "gives the number 0 to two objects"),
    ("pu:2(indexes=0)", "has 1 numbers for 2 objects"),
    ("pu:2(indexes=0,1,2)", "has 3 numbers for 2 objects"),
    ("pu:4(indexes=3*2)", "do not number 4 objects"),
    (
        "pu:4(indexes=2*2:0*2)",
        "at character 18: '0*2' is not a valid loop",
    ),
    ("pu:4(indexes=2*2:2*2)", "two objects"),
    (
        "core:2 pu:4(indexes=core:l3)",
        "'l3' in indexes= must name a level",
    ),
    (
        "[numa(indexes=core)] core:2 pu:2",
        "smaller than the numbered objects",
    ),
];

#[test]
fn rejects_invalid_descriptions_with_position_and_reason() {
    for (description, reason) in INVALID {
        let message = check(description).unwrap_err();
        assert!(message.contains(reason), "{description}: {message}");
    }
    let long = check(&"core:1 ".repeat(10_000)).unwrap_err();
    assert!(long.contains("the maximum is 65536"), "{long}");
    let nested = format!("{}numa{} pu:1", "[".repeat(9), "]".repeat(9));
    let nested = check(&nested).unwrap_err();
    assert!(nested.contains("more than 8 levels deep"), "{nested}");
    let deep = check(&"group:1 ".repeat(1000)).unwrap_err();
    assert!(deep.contains("more than 126 levels"), "{deep}");
}

/// Descriptions of levels in a valid order, with memory and indexes.
fn description() -> impl Strategy<Value = String> {
    let count = 1u64..4;
    let levels = prop::collection::vec((0usize..7, count.clone(), 0u8..5), 0..6);
    (levels, count, any::<bool>()).prop_map(|(mut levels, threads, reverse)| {
        const TYPES: [&str; 7] = [
            "Group", "Package", "Die", "L3Cache", "L2Cache", "Core", "Group",
        ];
        levels.sort_by_key(|level| level.0);
        levels.dedup_by_key(|level| level.0);
        let mut text = String::new();
        let mut total = threads;
        for (level, count, memory) in levels {
            total *= count;
            text += &format!("{}:{count} ", TYPES[level]);
            if memory == 0 {
                text += "[NUMANode(memory=1GB)] ";
            }
        }
        let numbers: Vec<String> = (0..total).rev().map(|n| (n * 3).to_string()).collect();
        match reverse {
            true => format!("{text}PU:{threads}(indexes={})", numbers.join(",")),
            false => format!("{text}PU:{threads}"),
        }
    })
}

proptest! {
    #[test]
    fn hwloc_builds_the_same_machine(description in description()) {
        prop_assert_eq!(Some(ours(&description).unwrap()), hwlocs(&description));
    }
}
