// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the daemon's metrics: the format of the page, the series of managed programs, and the
//! agreement with `docs/metrics.md`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "common/openmetrics.rs"]
mod openmetrics;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use common::{World, signal};
use openmetrics::Sample;

#[test]
fn metrics_are_served_at_the_requested_address() {
    let mut world = World::new();
    let path = world.path("metrics");
    let daemon = world.daemon(&["--metrics", &format!("unix:{}", path.display())]);
    let request = |method: &str| {
        let mut socket = UnixStream::connect(&path).unwrap();
        let head = format!("{method} /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        socket.write_all(head.as_bytes()).unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        text
    };
    // A client that connects and sends nothing must not block other clients for long.
    let _silent = UnixStream::connect(&path).unwrap();
    let text = request("GET");
    assert!(
        text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("# EOF\n"),
        "{text}"
    );
    for metric in [
        "usher_programs{mode=\"seated\"} 0",
        "usher_decisions_total ",
        "usher_seating_seconds_count 0",
    ] {
        assert!(text.contains(metric), "{metric} is missing:\n{text}");
    }
    let text = request("HEAD");
    assert!(
        text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\n"),
        "{text}"
    );
    assert!(!text.contains("usher_"), "{text}");
    let text = request("POST");
    assert!(
        text.starts_with("HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\n"),
        "{text}"
    );
    assert_eq!(world.end(daemon), Some(0));
    assert!(!path.exists());
}

#[test]
fn a_file_at_the_address_of_metrics_is_left_as_it_is() {
    let world = World::new();
    let (file, link) = (world.path("notes"), world.path("link"));
    std::fs::write(&file, "text").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link] {
        let refused = world.run(&["daemon", "--metrics", &format!("unix:{}", path.display())]);
        assert!(!refused.status.success());
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(text.contains("the file exists and is no socket"), "{text}");
        assert!(text.contains(&*path.to_string_lossy()), "{text}");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "text");
    }
    assert!(link.is_symlink());
}

#[test]
fn each_managed_program_has_metrics() {
    let mut world = World::new();
    let path = world.path("metrics");
    let daemon = world.daemon(&["--metrics", &format!("unix:{}", path.display())]);
    let scrape = || {
        let mut socket = UnixStream::connect(&path).unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        let page = text.split_once("\r\n\r\n").unwrap().1;
        openmetrics::parse(page).unwrap_or_else(|error| panic!("{error}\n{page}"))
    };
    let of_programs = |samples: &[Sample]| {
        let programs = samples
            .iter()
            .filter(|s| s.name.starts_with("usher_program_"));
        programs.count()
    };
    assert_eq!(of_programs(&scrape()), 0);
    let name = "one \"odd\\n\" name";
    let weighted = [
        "run", "--name", name, "--weight", "2.5", "--", "sleep", "1000",
    ];
    let launchers = [
        &weighted[..],
        &["bg", "--name", "late", "--", "sleep", "1000"],
    ];
    let launchers = launchers.map(|args| world.usher(args).spawn().unwrap());
    let programs = world.programs(2);
    let samples = scrape();
    let value = |metric: &str, name: &str| {
        let of_program = |s: &&Sample| s.name == metric && s.label("name") == Some(name);
        samples.iter().find(of_program).map(|sample| sample.value)
    };
    assert_eq!(value("usher_program_weight", name), Some(2.5));
    assert_eq!(value("usher_program_frozen", name), Some(0.0));
    assert!(value("usher_program_seat_cpus", name).is_some());
    assert!(value("usher_program_cpu_seconds_total", name).is_some());
    let is_background = |name: &str| {
        let mut samples = samples.iter();
        let sample = samples.find(|s| s.label("name") == Some(name)).unwrap();
        let uid = rustix::process::getuid().as_raw().to_string();
        assert_eq!(sample.label("uid"), Some(&*uid));
        sample.label("background") == Some("true")
    };
    assert!(is_background("late") && !is_background(name));
    for program in programs {
        signal(program["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    }
    for mut launcher in launchers {
        assert_eq!(launcher.wait().unwrap().code(), Some(128 + libc::SIGKILL));
    }
    world.programs(0);
    assert_eq!(of_programs(&scrape()), 0, "no series of ended programs");
    let documents = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let documented = fs::read_to_string(documents).unwrap();
    for sample in &samples {
        let name = ["_sum", "_count", "_bucket"]
            .iter()
            .find_map(|suffix| sample.name.strip_suffix(suffix))
            .unwrap_or(&sample.name);
        assert!(
            documented.contains(&format!("| `{name}` |")),
            "{name} is not documented"
        );
    }
    assert_eq!(world.end(daemon), Some(0));
}

#[test]
fn the_check_of_metrics_rejects_bad_pages() {
    let head = "# HELP a text\n# TYPE a gauge\n";
    for bad in [
        "a 1\n# EOF\n".to_owned(),
        format!("{head}a 1\n"),
        format!("{head}a 1\na 2\n# EOF\n"),
        format!("{head}b 1\n# EOF\n"),
        format!("{head}a x\n# EOF\n"),
        format!("{head}a{{b=\"1}} 1\n# EOF\n"),
        format!("{head}{head}a 1\n# EOF\n"),
        "# HELP a t\n# TYPE a counter\na 1\n# EOF\n".to_owned(),
    ] {
        assert!(openmetrics::parse(&bad).is_err(), "{bad}");
    }
    let good = format!("{head}a{{b=\"\\\"\"}} 1\n# EOF\n");
    assert_eq!(openmetrics::parse(&good).unwrap()[0].label("b"), Some("\""));
}
