// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the reader of hwloc's files.

use super::*;
use crate::assemble;

/// A file of version 3 with a hybrid package, a memory-side cache, and a CPU that is not allowed.
const VERSION_3: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc3.dtd">
<topology version="3.0">
  <!-- <object type="PU"/> -->
  <info name="Backend" value="Linux"/>
  <object type="Machine" os_index="0" cpuset="0x0000000f" complete_cpuset="0x0000001f" allowed_cpuset="0x00000007">
    <object type="Package" os_index="0" cpuset="0x0000000f">
      <info name="CPUModel" value="A &amp; B&#10;C"/>
      <object type="MemCache" cpuset="0x0000000f" cache_size="1073741824">
        <object type="NUMANode" os_index="0" cpuset="0x0000000f" local_memory="8589934592"/>
      </object>
      <object type="NUMANode" os_index="2" cpuset="0x0000000f" local_memory="4294967296" subtype="CXL"/>
      <object type="L3Cache" subtype="MemorySideCache" cpuset="0x0000000f" cache_size="99"/>
      <object type="Die" os_index="0" cpuset="0x0000000f">
        <object type="L2Cache" cpuset="0x00000003" cache_size="2097152">
          <object type="Core" os_index="0" cpuset="0x00000001"><object type="PU" os_index="0" cpuset="0x1"/></object>
          <object type="Core" os_index="1" cpuset="0x00000002"><object type="PU" os_index="1" cpuset="0x2"/></object>
        </object>
        <object type="L2Cache" cpuset="0x0000000c" cache_size="1048576">
          <object type="Core" os_index="2" cpuset="0x00000004"><object type='PU' os_index='2' cpuset="0x4"/></object>
          <object type="Core" os_index="3" cpuset="0x00000008"><object type="PU" os_index="3" cpuset="0x8"/></object>
        </object>
      </object>
    </object>
  </object>
  <cpukind cpuset="0x00000003" forced_efficiency="1"><info name="CoreType" value="IntelCore"/></cpukind>
  <cpukind cpuset="0x0000000c" forced_efficiency="0"><info name="CoreType" value="IntelAtom"/></cpukind>
</topology>
"#;

fn read(text: &str) -> Result<HwlocFacts, String> {
    facts(&survey(text)?, "test".to_owned())
}

#[test]
fn a_file_of_version_3_is_converted() {
    let facts = read(VERSION_3).unwrap();
    assert_eq!(facts.offline.to_string(), "4");
    assert_eq!(facts.disallowed.to_string(), "3");
    let machine = assemble::topology(facts);
    machine.check().unwrap();
    let caches: Vec<_> = machine.domains.iter().map(|d| d.llc.unwrap()).collect();
    let sizes = [2097152, 1048576].map(|bytes| Cache { level: 2, bytes });
    assert_eq!(caches, sizes, "a memory-side cache is no LLC");
    assert_eq!(machine.packages[0].model.as_deref(), Some("A & B C"));
    let nodes: Vec<_> = machine
        .nodes
        .iter()
        .map(|n| (n.os, n.bytes, n.cpus.len()))
        .collect();
    assert_eq!(nodes, [(0, 8 << 30, 4), (2, 4 << 30, 0)]);
    let capacities: Vec<f64> = machine.cores.iter().map(|core| core.capacity).collect();
    assert_eq!(capacities, [1.0, 1.0, 0.787, 0.787]);
}

/// A machine with four cores and these kinds, as a file of a version.
fn with_kinds(kinds: &str) -> HwlocFacts {
    let pus: String = (0..4)
        .map(|cpu| format!("<object type=\"PU\" os_index=\"{cpu}\"/>"))
        .collect();
    let file = format!(
        "<topology version=\"3.0\"><object type=\"Machine\" cpuset=\"0xf\">{pus}</object>\n{kinds}\n</topology>"
    );
    read(&file).unwrap()
}

#[test]
fn damaged_kinds_are_ignored_with_a_note() {
    let kind = |set: &str, rank: &str, info: &str| {
        format!("<cpukind cpuset=\"{set}\" forced_efficiency=\"{rank}\">{info}</cpukind>")
    };
    let info = |name: &str, value: &str| format!("<info name=\"{name}\" value=\"{value}\"/>");
    let fast = kind("0x3", "1", &info("LinuxCapacity", "1024"));
    let notes = |slow: &str| with_kinds(&format!("{fast}\n{slow}")).notes;
    assert!(notes(&kind("0xc", "0", &info("LinuxCapacity", "500"))).is_empty());
    assert!(notes(&kind("0xc", "-1", &info("CoreType", "IntelAtom"))).is_empty());
    let unrated = "the CPUs 2-3 are in no CPU kind; they are rated like the fastest cores";
    for (slow, expected) in [
        (
            kind("0xc", "fast\u{1b}[2J", ""),
            vec!["line 3: the value 'fast\\u{1b}[2J' of forced_efficiency is not a valid rank"],
        ),
        (
            kind("0xc", "0", &info("LinuxCapacity", "70000")),
            vec!["line 3: the value '70000' of LinuxCapacity is not a number from 1 to 65535"],
        ),
        (
            kind("0xc", "0", &info("FrequencyMaxMHz", "")),
            vec!["line 3: the value '' of FrequencyMaxMHz is not a frequency"],
        ),
        (
            kind("0xzz", "0", ""),
            vec![
                "line 3: the cpuset '0xzz' of a CPU kind is not valid",
                unrated,
            ],
        ),
        (
            kind("", "0", ""),
            vec!["line 3: a CPU kind has no CPUs", unrated],
        ),
        (
            kind("0xe", "0", ""),
            vec!["line 3: the CPUs 1 are in several CPU kinds"],
        ),
        (
            kind("0x1c", "0", ""),
            vec!["the CPU kinds contain the CPUs 4, which do not exist"],
        ),
    ] {
        let notes = notes(&slow);
        assert_eq!(notes.len(), expected.len(), "{slow}: {notes:?}");
        for (note, expected) in notes.iter().zip(expected) {
            assert!(note.contains(expected), "{slow}: {note}");
        }
    }
}

#[test]
fn huge_sets_are_limited() {
    let core = "<object type=\"Core\" cpuset=\"0xf...f\"/>".repeat(100);
    let file =
        format!("<topology version=\"2.0\"><object type=\"PU\" os_index=\"0\"/>{core}</topology>");
    let message = read(&file).unwrap_err();
    assert!(
        message.contains("have more than 4000000 elements"),
        "{message}"
    );
    let kinds = "<cpukind cpuset=\"0xf...f\" forced_efficiency=\"0\"/>\n".repeat(200);
    let notes = with_kinds(&kinds).notes;
    assert!(notes.len() <= 18, "{notes:?}");
}

#[test]
fn sets_have_words_of_32_bits() {
    let file = |set: &str| {
        format!(
            "<topology version=\"3.1\"><object type=\"Machine\" cpuset=\"{set}\"><object \
             type=\"PU\" os_index=\"33\"/></object></topology>"
        )
    };
    let cpus = |set: &str| survey(&file(set)).unwrap().elements[1].cpus("cpuset");
    assert_eq!(
        cpus("0x00000003,0x80000001").unwrap().to_string(),
        "0,31-33"
    );
    assert_eq!(cpus("0x1,,0x1").unwrap().to_string(), "0,64");
    assert_eq!(cpus("0x00ff0000,,,0x0").unwrap().to_string(), "112-119");
    assert_eq!(cpus("").unwrap().to_string(), "");
    assert_eq!(cpus("0xf...f,0x1").unwrap().to_string(), "0,32-65535");
    assert!(cpus("0xg").unwrap_err().contains("line 1"));
    assert!(cpus("+1").is_err());
    assert!(cpus(&"0x1,".repeat(3000)).is_err());
    assert_eq!(read(&file("0x0")).unwrap().pus, [33]);
}

#[test]
fn files_that_describe_no_single_machine_are_rejected_with_the_reason() {
    let pu = "<object type=\"PU\" os_index=\"0\"/>";
    let machines = format!("<object type=\"Machine\">{pu}</object>").repeat(2);
    for (text, reason) in [
        ("", "contains no element"),
        ("<topologydiff/>", "difference of two machines"),
        ("<html/>", "the first element is 'html'"),
        ("<topology version=\"4.0\"/>", "version 4.0"),
        ("<topology version=\"x\"/>", "version x"),
        ("<topology/>", "no logical CPU"),
        (
            &format!("<topology>{machines}</topology>"),
            "describes 2 machines",
        ),
        (
            &format!("<topology><object type=\"System\">{pu}</object></topology>"),
            "system of several",
        ),
        (
            "<topology>\n<object>\n</topology>",
            "line 3: the file is not a valid XML file: the end",
        ),
        (
            "<topology>\n<object>",
            "line 2: the file is incomplete: the element 'object'",
        ),
        ("<topology><a/></topology><b/>", "a second element"),
        ("<topology a></topology>", "no value"),
        ("<topology a=1></topology>", "not quoted"),
        ("<topology a=\"1></topology>", "is not closed"),
        ("<topology a=\"&b;\"></topology>", "unknown entity"),
        ("<topology a=\"&#xd800;\"></topology>", "unknown entity"),
        ("<topology><!-- </topology>", "a comment is not closed"),
        (
            "<!DOCTYPE t [<!ENTITY a \"b\">]><topology/>",
            "declarations",
        ),
        (&"<a>".repeat(2000), "nested too deeply"),
        (
            &format!("<topology version=\"3.0\">{pu}{pu}</topology>"),
            "two logical CPUs of the file have the number 0",
        ),
        (
            "<topology version=\"3.0\"><object type=\"PU\"/></topology>",
            "the attribute os_index of an object of the type PU is missing",
        ),
        (
            &format!(
                "<topology version=\"3.0\">{pu}\n<object type=\"L3Cache\" cache_size=\"-1\"/></topology>"
            ),
            "line 2: the attribute cache_size is not a valid size",
        ),
    ] {
        let message = read(text).unwrap_err();
        assert!(message.contains(reason), "{text}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}
