// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz targets for descriptions of machines (synthetic text, XML, copies of `/sys`) and CPU lists.
//! The parsers must return a value or an error.

use std::fs;
use std::path::Path;

use usher_fuzz::fuzz;
use usher_model::{CpuSet, Topology};
use usher_topology::{DrawOptions, Source, draw, load};

#[test]
fn cpu_lists() {
    let samples: [&[u8]; 4] = [b"0-3,8", b"", b"0-65535", b"1,3,5,7-9\n"];
    fuzz("cpu_lists", &samples, |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(cpus) = text.parse::<CpuSet>() {
            assert_eq!(cpus.to_string().parse(), Ok(cpus));
        }
    });
}

#[test]
fn descriptions() {
    let samples: [&[u8]; 8] = [
        b"Package:1 [MemCache(size=1GiB) NUMANode(memory=8GiB)] [MemCache [NUMANode] [NUMANode]] L2Cache:2 PU:1",
        b"Package:2 [NUMANode(memory=1GiB memorysidecachesize=4096)] L3Cache:2(size=32MiB) L1dCache:2 Core:1 PU:1",
        b"[numa(indexes=0)] Group0:2 tile:2 core:2 pu:2(indexes=2*4:4*2)",
        b"2 4 2 2 2(indexes=core:l2)",
        b"package:4 die:2 core:6 pu:1",
        b"package:2 numa:1 core:16 pu:2",
        b"core:4",
        b"numa:2(memory=1GB) l3:2(size=32MB) core:4 pu:2(indexes=0,4,2,6)",
    ];
    fuzz("descriptions", &samples, |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(source @ Source::Synthetic(_)) = Source::parse(&text) {
            loads(source);
        }
    });
}

#[test]
fn xml_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("machine.xml");
    let version_3 = MACHINE_XML.replace("2.0", "3.0").replace(
        "</topology>",
        "<cpukind cpuset=\"0x3\" forced_efficiency=\"1\"><info name=\"CoreType\" \
         value=\"IntelCore\"/></cpukind></topology>",
    );
    let samples = [MACHINE_XML.as_bytes(), version_3.as_bytes()];
    fuzz("xml_files", &samples, |input| {
        fs::write(&file, input).unwrap();
        loads(Source::Xml(file.clone()));
    });
}

#[test]
fn copies_of_sys() {
    // The first byte of an input selects a file, and the rest of the input becomes the content of
    // that file.
    const FILES: [&str; 15] = [
        "sys/devices/system/cpu/online",
        "sys/devices/system/cpu/possible",
        "sys/devices/system/cpu/cpu0/topology/core_cpus",
        "sys/devices/system/cpu/cpu0/topology/package_cpus",
        "sys/devices/system/cpu/cpu0/topology/physical_package_id",
        "sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_map",
        "sys/devices/system/cpu/cpu0/cache/index0/size",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq",
        "proc/cpuinfo",
        "sys/devices/system/cpu/cpu0/acpi_cppc/highest_perf",
        "sys/devices/cpu_core/cpus",
        "sys/devices/system/cpu/cpu0/cpu_capacity",
        "sys/devices/system/node/online",
        "sys/devices/system/cpu/cpu1/online",
        "sys/devices/system/node/node0/memory_side_cache/index1/size",
    ];
    let samples: [&[u8]; 7] = [
        b"\x09196\n",
        b"\x0a0-1\n",
        b"\x000-1\n",
        b"\x0200000003\n",
        b"\x040\n",
        b"\x0632K\n",
        b"\x08processor\t: 0\n",
    ];
    let dir = tempfile::tempdir().unwrap();
    fuzz("copies_of_sys", &samples, |input| {
        let (which, content) = input.split_first().unwrap_or((&0, b""));
        let changed = FILES[usize::from(*which) % FILES.len()];
        write_copy(dir.path());
        let path = dir.path().join(changed);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        loads(Source::Capture(dir.path().to_owned()));
    });
}

/// Writes the files of a machine with two cores and one cache into the directory.
fn write_copy(dir: &Path) {
    let write = |file: String, text: &str| {
        let path = dir.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for list in ["online", "possible", "present"] {
        write(format!("sys/devices/system/cpu/{list}"), "0-1\n");
    }
    for (cpu, own) in [("cpu0", "1\n"), ("cpu1", "2\n")] {
        let cpu = format!("sys/devices/system/cpu/{cpu}");
        write(format!("{cpu}/topology/core_cpus"), own);
        write(format!("{cpu}/topology/package_cpus"), "3\n");
        write(format!("{cpu}/topology/physical_package_id"), "0\n");
        write(format!("{cpu}/cache/index0/level"), "3\n");
        write(format!("{cpu}/cache/index0/type"), "Unified\n");
        write(format!("{cpu}/cache/index0/size"), "32768K\n");
        write(format!("{cpu}/cache/index0/shared_cpu_map"), "3\n");
    }
}

/// Loads a machine. If it loads, checks that the machine can be drawn, and that it is the same
/// after it was serialised and read again.
fn loads(source: Source) {
    let Ok(machine) = load(source) else { return };
    if machine.cpus.len() <= 4096 {
        draw(&machine, &DrawOptions::default());
    }
    let json = serde_json::to_string(&machine).unwrap();
    assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), machine);
}

const MACHINE_XML: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" os_index="0" cpuset="0x0000000f" complete_cpuset="0x0000000f" allowed_cpuset="0x0000000f" nodeset="0x00000001" complete_nodeset="0x00000001" allowed_nodeset="0x00000001" gp_index="1">
  <info name="DMIProductName" value="vm"/>
  <object type="Package" os_index="0" cpuset="0x0000000f" complete_cpuset="0x0000000f" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="2">
   <object type="NUMANode" os_index="0" cpuset="0x0000000f" complete_cpuset="0x0000000f" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="3" local_memory="1048576"/>
   <object type="L3Cache" cpuset="0x0000000f" complete_cpuset="0x0000000f" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="4" cache_size="33554432" depth="3" cache_linesize="64" cache_associativity="16" cache_type="0">
    <object type="Core" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="5">
     <object type="PU" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="6"/>
     <object type="PU" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="7"/>
    </object>
    <object type="Core" os_index="1" cpuset="0x0000000c" complete_cpuset="0x0000000c" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="8">
     <object type="PU" os_index="2" cpuset="0x00000004" complete_cpuset="0x00000004" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="9"/>
     <object type="PU" os_index="3" cpuset="0x00000008" complete_cpuset="0x00000008" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="10"/>
    </object>
   </object>
  </object>
 </object>
</topology>
"#;
