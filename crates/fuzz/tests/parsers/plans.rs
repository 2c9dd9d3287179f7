// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz targets for files that users write: plans, mixes, sim files, thresholds and records. The
//! parsers must return a value or an error.

use std::path::Path;

use usher_fuzz::fuzz;
use usher_host::mix::MixFile;
use usher_policy::Thresholds;
use usher_policy::planfile::plan_json;
use usher_sim::mixfile::SimMix;
use usher_sim::playback::play_back;
use usher_topology::{Source, load};

#[test]
fn plans() {
    let machine = load(Source::Synthetic("package:2 die:2 core:4 pu:1".to_owned())).unwrap();
    let samples: [&[u8]; 2] = [
        br#"{"programs":[{"name":"canneal","curve":{"6":1.9,"12":2.4}},{"name":"b","curve":{"1":1}}]}"#,
        br#"{"programs":[{"name":"a","curve":{"1":1.0,"8":7.5},"llc_bytes":1048576,"bandwidth_gbps":3.5,"weight":2,"spinners":2}]}"#,
    ];
    fuzz("plans", &samples, |input| {
        let text = String::from_utf8_lossy(input);
        let Ok(plan) = plan_json(&machine, &text) else {
            return;
        };
        assert!(plan.antt.is_finite(), "{plan:?}");
        serde_json::to_string(&plan).unwrap();
    });
}

#[test]
fn mixes() {
    let samples = [
        include_bytes!("../../../../examples/mixes/four-mixed.toml").as_slice(),
        include_bytes!("../../../../examples/mixes/sysbench-x264.toml"),
        include_bytes!("../../../../examples/mixes/gromacs-svd.toml"),
    ];
    fuzz("mixes", &samples, |input| {
        let text = String::from_utf8_lossy(input);
        let _ = MixFile::parse(Path::new("mix.toml"), &text);
    });
}

#[test]
fn mixes_to_be_simulated() {
    let samples = [include_bytes!("../../../../examples/sim/arrivals.toml").as_slice()];
    fuzz("mixes_to_be_simulated", &samples, |input| {
        let text = String::from_utf8_lossy(input);
        let _ = SimMix::parse(Path::new("mix.toml"), &text);
    });
}

#[test]
fn thresholds() {
    let samples: [&[u8]; 1] =
        [b"cpu = 0.85\ndisk = 1.0\nnetwork = 1.0\nidle = 0.25\nipd_idle = 0.62\n"];
    fuzz("thresholds", &samples, |input| {
        let text = String::from_utf8_lossy(input);
        if usher_model::nesting_error(&text).is_some() {
            return;
        }
        if let Ok(thresholds) = toml::from_str::<Thresholds>(&text) {
            assert_eq!(thresholds.checked(), Ok(thresholds));
        }
    });
}

#[test]
fn records() {
    let record = include_bytes!("../../../sim/tests/data/daemon.jsonl");
    let ends = record
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n');
    let ends: Vec<usize> = ends.map(|(at, _)| at + 1).collect();
    let samples = [&record[..ends[3]], &record[..ends[11]], &record[..ends[40]]];
    fuzz("records", &samples, |input| {
        let _ = play_back(input);
    });
}
