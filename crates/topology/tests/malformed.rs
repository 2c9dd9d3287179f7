// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that input which is not a machine gives an error of one line and never a crash: damaged
//! XML, extreme descriptions, wrong directories, and random text.

// Test helpers: clippy exempts only the tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::unpack;
use proptest::prelude::*;
use usher_topology::{Source, load};

/// The error's text, which must be one line.
fn refusal(text: &str) -> String {
    let error = match Source::parse(text) {
        Ok(source) => load(source).expect_err(text).to_string(),
        Err(error) => error.to_string(),
    };
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

#[test]
fn rejects_invalid_descriptions() {
    for (text, reason) in [
        ("", "'': no such file exists"),
        ("nonsense", "'nonsense': no such file exists"),
        ("package:0", "level 'package:0' is 0"),
        (
            "core:99999999",
            "more than 8192 CPUs at the level 'core:99999999'",
        ),
        ("package:2 core:4 pu:0", "level 'pu:0' is 0"),
        ("core:4(", "is not closed"),
        (
            "kernel:4 pu:2",
            "at character 1: the level 'kernel:4' is unknown",
        ),
        (
            "core:2 pu:2 core:2",
            "the level 'core:2' cannot be inside the level 'pu:2'",
        ),
        (
            "pu:2(indexes=0,4294967295)",
            "description 'pu:2(indexes=0,4294967295)'",
        ),
        ("core:4\n\x1b[31m", "\\u{1b}[31m"),
    ] {
        let message = refusal(text);
        assert!(message.contains(reason), "{text:?}: {message}");
    }
    let message = refusal(&"package:".repeat(10_000));
    assert!(
        message.len() < 300 && message.contains("the maximum is"),
        "{message}"
    );
}

#[test]
fn accepts_valid_descriptions() {
    for (text, counts) in [
        ("package:4 die:2 core:6 pu:1", [4, 8, 48, 48]),
        ("package:2 core:4", [2, 2, 8, 8]),
        ("pu:1", [1, 1, 1, 1]),
        ("2 4 2", [2, 8, 16, 16]),
        ("numa:2 l3:2 l2:2 core:2 pu:2", [1, 4, 16, 32]),
        ("package:2 l2:4 core:2 pu:1", [2, 8, 16, 16]),
        ("package:2 l2:4 core:1 pu:2", [2, 2, 8, 16]),
        ("package:1 l3:3 core:1", [1, 3, 3, 3]),
    ] {
        let t = load(Source::parse(text).unwrap()).unwrap();
        let seen = [
            t.packages.len(),
            t.domains.len(),
            t.cores.len(),
            t.cpus.len(),
        ];
        assert_eq!(seen, counts, "{text}");
        assert_eq!(t.name, text);
    }
}

#[test]
fn rejects_files_that_are_no_machine() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("empty.xml"), "").unwrap();
    fs::write(at("page.xml"), "<html><body/></html>").unwrap();
    fs::write(at("binary.xml"), [0xff, 0xfe, 0, 1]).unwrap();
    fs::write(at("bare.xml"), "<topology version=\"2.0\"></topology>").unwrap();
    fs::create_dir(at("tree")).unwrap();
    fs::create_dir_all(at("hollow/sys/devices/system/cpu")).unwrap();
    fs::create_dir_all(at("bare/sys/devices/system/cpu/cpu0")).unwrap();
    fs::create_dir_all(at("cpuid")).unwrap();
    fs::write(at("cpuid/hwloc-cpuid-info"), "Architecture: x86\n").unwrap();
    for (name, reason) in [
        ("empty.xml", "the file is not an XML file written by hwloc"),
        ("page.xml", "the file is not an XML file written by hwloc"),
        ("binary.xml", "the file is not an XML file written by hwloc"),
        ("bare.xml", "hwloc"),
        ("missing.xml", "the file or directory does not exist"),
        ("tree", "because it has no sys/devices/system/cpu"),
    ] {
        let message = refusal(at(name).to_str().unwrap());
        assert!(
            message.contains(reason) && message.contains(name),
            "{message}"
        );
    }
    for (name, reason) in [
        (
            "hollow",
            "has no folders cpu0, cpu1 and so on (to make a copy: hwloc-gather-topology)",
        ),
        (
            "bare",
            "no folder sys/devices/system/cpu/cpu0/topology or the like exists",
        ),
        ("cpuid", "it has no files pu0, pu1 and so on"),
    ] {
        let message = refusal(at(name).to_str().unwrap());
        assert!(message.contains(reason), "{message}");
    }
    assert!(refusal("/dev/null").contains("/dev/null: the path is not a regular file"));
}

#[test]
fn paths_that_cannot_be_followed_are_named_with_the_reason() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    symlink("loop", at("loop")).unwrap();
    symlink("other.xml", at("loop.xml")).unwrap();
    symlink("loop.xml", at("other.xml")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    fs::write(at("file"), "").unwrap();
    for (name, reason) in [
        ("loop", "oo many levels of symbolic links"),
        ("loop.xml", "oo many levels of symbolic links"),
        ("loop/machine", "oo many levels of symbolic links"),
        ("loop/machine:2", "oo many levels of symbolic links"),
        (
            "dangling",
            "the symbolic link leads to 'nowhere', which does not exist",
        ),
        ("file/machine", "Not a directory"),
        ("missing/machine", "the file or directory does not exist"),
    ] {
        let message = refusal(&at(name));
        let expected = message.contains(reason) && message.contains(name);
        assert!(expected && !message.contains("description"), "{message}");
    }
    // A long description is not a path.
    let long = format!("package:2 {}core:2", " ".repeat(5000));
    assert_eq!(load(Source::parse(&long).unwrap()).unwrap().cpus.len(), 4);
}

#[test]
fn loading_does_not_change_this_process() {
    let before: Vec<_> = std::env::vars_os().collect();
    let affinity = || fs::read_to_string("/proc/thread-self/status").unwrap();
    let allowed = |status: String| {
        let line = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list"));
        line.unwrap().to_owned()
    };
    let cpus = allowed(affinity());
    let capture = unpack("magny-cours-48.tar.gz");
    load(Source::Capture(capture.path.clone())).unwrap();
    let here = load(Source::ThisMachine).unwrap();
    assert_eq!(std::env::vars_os().collect::<Vec<_>>(), before);
    assert_eq!(allowed(affinity()), cpus);
    let usable = usher_topology::usable_cpus(Path::new("/")).unwrap();
    assert!(!here.restrict(&usable).unwrap().cpus.is_empty());
}

/// A token of the description syntax, or a similar token.
fn word() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec![
        "package", "die", "numa", "l3", "l2", "core", "pu", "group", "L1d", "machine", "node", "x",
        "",
    ]);
    prop_oneof![
        6 => (kind, 0u32..6).prop_map(|(kind, count)| format!("{kind}:{count}")),
        1 => (0u32..5).prop_map(|count| count.to_string()),
        1 => "[a-z0-9:(){}\\[\\]=, ]{0,12}",
        1 => Just("core:2(size=1kB)".to_owned()),
        1 => Just("pu:2(indexes=1,0)".to_owned()),
    ]
}

/// Writes a file with the given text. The file exists until the returned directory is dropped.
fn written(text: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mutant.xml");
    fs::write(&path, text).unwrap();
    (dir, path)
}

/// Checks that the result is a consistent machine or an error of one line.
fn harmless(source: Source) -> Result<(), TestCaseError> {
    match load(source) {
        Ok(topology) => prop_assert_eq!(topology.check(), Ok(())),
        Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_text_is_a_source_or_an_error(text in ".{0,60}") {
        if let Err(error) = Source::parse(&text) {
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn anything_like_a_description_is_harmless(words in prop::collection::vec(word(), 0..5)) {
        if let Ok(source @ Source::Synthetic(_)) = Source::parse(&words.join(" ")) {
            harmless(source)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn mutated_xml_is_harmless(
        cuts in prop::collection::vec((0.0..1.0f64, 0usize..40, "[ -~]{0,6}"), 1..4),
    ) {
        let fixture = unpack("arm-2.xml.gz");
        let mut xml = fs::read(&fixture.path).unwrap();
        for (at, length, instead) in cuts {
            let start = (at * xml.len() as f64) as usize;
            let end = (start + length).min(xml.len());
            xml.splice(start..end, instead.bytes());
        }
        let (_dir, path) = written(&xml);
        harmless(Source::Xml(path))?;
    }

    #[test]
    fn xml_with_wrong_numbers_is_harmless(
        changes in prop::collection::vec((0.0..1.0f64, any::<u32>()), 1..5),
    ) {
        let fixture = unpack("skylake-32.xml.gz");
        let xml = fs::read_to_string(&fixture.path).unwrap();
        let mut parts: Vec<String> = xml.split('"').map(str::to_owned).collect();
        for (at, number) in changes {
            let value = (at * (parts.len() / 2) as f64) as usize * 2 + 1;
            parts[value] = match number % 3 {
                0 => number.to_string(),
                1 => format!("0x{number:08x}"),
                _ => format!("{}", number % 64),
            };
        }
        let (_dir, path) = written(parts.join("\"").as_bytes());
        harmless(Source::Xml(path))?;
    }
}
