// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of the topology tests: unpacks the captured machines in tests/fixtures and loads each
//! once.

#![allow(dead_code)]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use flate2::read::GzDecoder;
use usher_model::Topology;
use usher_topology::{Source, load};

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// An unpacked fixture: a sysfs tree, or an XML file with the fixture's name.
pub struct UnpackedFixture {
    _dir: tempfile::TempDir,
    pub path: PathBuf,
}

pub fn unpack(file: &str) -> UnpackedFixture {
    let dir = tempfile::tempdir().unwrap();
    let mut input = GzDecoder::new(fs::File::open(fixtures().join(file)).unwrap());
    let (name, is_tree) = match file.strip_suffix(".tar.gz") {
        Some(name) => (name, true),
        None => (file.strip_suffix(".gz").unwrap(), false),
    };
    let path = dir.path().join(name);
    if is_tree {
        tar::Archive::new(input).unpack(dir.path()).unwrap();
    } else {
        let mut xml = Vec::new();
        input.read_to_end(&mut xml).unwrap();
        fs::write(&path, xml).unwrap();
    }
    UnpackedFixture { _dir: dir, path }
}

/// All fixtures, by file name, loaded once.
pub fn machines() -> &'static [(String, Topology)] {
    static MACHINES: OnceLock<Vec<(String, Topology)>> = OnceLock::new();
    MACHINES.get_or_init(|| {
        let mut files: Vec<String> = fs::read_dir(fixtures())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".gz"))
            .collect();
        files.sort();
        files
            .into_iter()
            .map(|file| {
                let unpacked = unpack(&file);
                let source = Source::parse(unpacked.path.to_str().unwrap()).unwrap();
                let topology = load(source).unwrap_or_else(|why| panic!("{file}: {why}"));
                (file, topology)
            })
            .collect()
    })
}

/// Returns the machine of the fixture whose file name starts with `name`.
pub fn machine(name: &str) -> &'static Topology {
    let found = machines().iter().find(|(file, _)| file.starts_with(name));
    &found.unwrap_or_else(|| panic!("no fixture {name}")).1
}
