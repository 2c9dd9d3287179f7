// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of the cores of twelve hybrid machines equals the order that their makers publish, from
//! fast to slow. The captures contain what Linux provides on each machine: core types, `cpu_capacity`,
//! CPPC or frequencies.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

#[path = "captures/mod.rs"]
mod captures;

use captures::{Capture, Cores};
use usher_topology::{DrawOptions, Source, draw, load};

const INTEL_PERFORMANCE: Cores = Cores {
    count: 4,
    l2_sharers: 1,
    has_l3: true,
    capacity: 0,
    perf: 0,
    mhz: 0,
    counters: "cpu_core",
};
const INTEL_EFFICIENT: Cores = Cores {
    l2_sharers: 4,
    counters: "cpu_atom",
    ..INTEL_PERFORMANCE
};
const OTHER: Cores = Cores {
    counters: "",
    ..INTEL_PERFORMANCE
};

fn intel(mhz: [u32; 2]) -> Vec<Cores> {
    let [fast, slow] = mhz;
    vec![
        Cores {
            mhz: fast,
            ..INTEL_PERFORMANCE
        },
        Cores {
            mhz: slow,
            ..INTEL_EFFICIENT
        },
    ]
}

/// Cores by `cpu_capacity`.
fn arm(kinds: &[(u32, u32)]) -> Vec<Cores> {
    let kind = |&(count, capacity): &(u32, u32)| Cores {
        count,
        capacity,
        ..OTHER
    };
    kinds.iter().map(kind).collect()
}

/// Cores by CPPC, with equal frequencies as drivers before Linux 6.13 state them.
fn amd(kinds: &[(u32, u32)]) -> Vec<Cores> {
    let kind = |&(count, perf): &(u32, u32)| Cores {
        count,
        perf,
        mhz: 5100,
        ..OTHER
    };
    kinds.iter().map(kind).collect()
}

/// The kinds of each machine, from the fastest to the slowest.
fn machines() -> Vec<(&'static str, Vec<Cores>)> {
    let low_power = Cores {
        count: 2,
        l2_sharers: 2,
        has_l3: false,
        ..INTEL_EFFICIENT
    };
    // The efficient cores of both places are in one list, and the kernel gives them one capacity.
    let mut meteor_lake = intel([4800, 3800]);
    meteor_lake.push(Cores {
        mhz: 2500,
        counters: "",
        ..low_power
    });
    let mut arrow_lake = intel([5100, 4500]);
    arrow_lake.push(Cores {
        mhz: 2500,
        counters: "cpu_lowpower",
        ..low_power
    });
    for kind in &mut arrow_lake {
        kind.capacity = if kind.mhz == 5100 { 1024 } else { 760 };
    }
    // The efficient cores have no L3.
    let mut lunar_lake = intel([4800, 3700]);
    lunar_lake[1].has_l3 = false;
    // Apple's capacities are those of the device tree times the maximum frequency.
    let apple_m1 = arm(&[(4, 1024), (4, 459)]);
    vec![
        ("Apple M1", apple_m1),
        ("Alder Lake (i9-12900K)", intel([5100, 3900])),
        ("Raptor Lake (i9-13900K)", intel([5500, 4300])),
        ("Meteor Lake (Ultra 7 155H)", meteor_lake),
        ("Arrow Lake-H (Ultra 9 285H)", arrow_lake),
        ("Lunar Lake (Ultra 7 258V)", lunar_lake),
        (
            "Strix Point (Ryzen AI 9 HX 370)",
            amd(&[(4, 206), (8, 151)]),
        ),
        ("Phoenix 2 (Ryzen 5 8540U)", amd(&[(2, 196), (4, 140)])),
        ("NVIDIA GB10", arm(&[(10, 1024), (10, 718)])),
        ("Rockchip RK3588", arm(&[(4, 1024), (4, 530)])),
        (
            "Snapdragon 8 Gen 3",
            arm(&[(1, 1024), (3, 879), (2, 849), (2, 325)]),
        ),
    ]
}

fn capture(name: &str, kinds: &[Cores]) -> Capture {
    let capture = Capture::new(kinds);
    if name.starts_with("Meteor") {
        capture.write("sys/devices/cpu_atom/cpus", "4-9\n");
    }
    capture
}

#[test]
fn capacities_have_the_order_of_the_makers() {
    for (name, kinds) in machines() {
        let capture = capture(name, &kinds);
        let machine = load(Source::Capture(capture.path().to_owned())).unwrap();
        let mut first = 0;
        let mut capacities: Vec<f64> = Vec::new();
        for kind in &kinds {
            let of_kind = (first..first + kind.count).map(|cpu| {
                let cpu = machine.cpu(cpu).unwrap();
                machine.cores[cpu.core].capacity
            });
            let of_kind: Vec<f64> = of_kind.collect();
            assert!(
                of_kind.iter().all(|c| *c == of_kind[0]),
                "{name}: {of_kind:?}"
            );
            capacities.push(of_kind[0]);
            first += kind.count;
        }
        assert_eq!(capacities[0], 1.0, "{name}: {capacities:?}");
        let falling = capacities.windows(2).all(|pair| pair[0] > pair[1]);
        assert!(falling, "{name}: {capacities:?}");
    }
}

#[test]
fn drawings_name_the_classes_of_cores() {
    for (name, kinds) in machines() {
        let machine = load(Source::Capture(capture(name, &kinds).path().to_owned()));
        let text = draw(&machine.unwrap(), &DrawOptions::default());
        let classes = format!(" cores ({} of capacity 1.00, ", kinds[0].count);
        assert!(text.contains(&classes), "{name}: {text}");
        let legend = "capacity: speed of a core relative to the fastest core";
        assert_eq!(
            text.lines().filter(|line| *line == legend).count(),
            1,
            "{name}"
        );
    }
    // Each domain of a hybrid machine has its capacity, and the lines of the headline end between
    // facts.
    let kinds = amd(&[(4, 206), (8, 151)]);
    let machine = load(Source::Capture(Capture::new(&kinds).path().to_owned()));
    let mut machine = machine.unwrap();
    machine.name = "Strix Point".to_owned();
    machine.domains.push(machine.domains[0].clone());
    let (fast, slow): (Vec<usize>, Vec<usize>) = ((0..4).collect(), (4..12).collect());
    for (domain, cores) in [(0, fast), (1, slow)] {
        let cpus = cores
            .iter()
            .flat_map(|&core| machine.cores[core].cpus.iter());
        machine.domains[domain].cpus = cpus.collect();
        cores
            .iter()
            .for_each(|&core| machine.cores[core].domain = domain);
        machine.domains[domain].cores = cores;
    }
    machine.packages[0].domains = vec![0, 1];
    machine.check().unwrap();
    let options = |width| DrawOptions {
        width,
        ..DrawOptions::default()
    };
    let text = draw(&machine, &options(72));
    for title in ["L3 16 MiB · capacity 1.00", "L3 16 MiB · capacity 0.73"] {
        assert!(text.contains(title), "{text}");
    }
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].ends_with(','), "{text}");
    // Five classes are described as a range.
    let five: Vec<(u32, u32)> = [1024, 800, 600, 400, 200].map(|c| (1, c)).to_vec();
    let machine = load(Source::Capture(Capture::new(&arm(&five)).path().to_owned()));
    let text = draw(&machine.unwrap(), &DrawOptions::default());
    assert!(
        text.contains("5 cores (of capacity 0.20 to 1.00)"),
        "{text}"
    );
    let narrow = DrawOptions {
        width: 40,
        ..DrawOptions::default()
    };
    let smt = load(Source::parse("core:2 pu:2").unwrap()).unwrap();
    let text = draw(&smt, &narrow);
    assert!(
        text.lines().all(|line| line.chars().count() <= 40),
        "{text}"
    );
}

#[test]
fn equal_cores_with_preferred_ones_have_equal_capacity() {
    // Ryzen 9 7950X: ratings from 236 to 166, on two dies with a gap between their ratings. Some
    // versions of Linux derive a maximum frequency of each core from its rating.
    let gap = |core: u32| {
        if core < 8 {
            236 - 5 * core
        } else {
            186 - 2 * (core - 8)
        }
    };
    for frequencies in [false, true] {
        let mut ryzen = amd(&(0..16).map(|core| (1, gap(core))).collect::<Vec<_>>());
        for kind in ryzen.iter_mut().filter(|_| frequencies) {
            kind.mhz = kind.perf * 5881 / 236;
        }
        let capture = Capture::new(&ryzen);
        let machine = load(Source::Capture(capture.path().to_owned())).unwrap();
        assert!(machine.cores.iter().all(|core| core.capacity == 1.0));
    }
}

#[test]
fn favoured_cores_do_not_make_a_machine_hybrid() {
    // Core i9-10900K: two cores with Turbo Boost Max 3.0.
    let cores = |count, mhz, perf| Cores {
        count,
        mhz,
        perf,
        ..OTHER
    };
    for perf in [[0, 0], [53, 51], [255, 255]] {
        let kinds = [cores(2, 5300, perf[0]), cores(8, 5100, perf[1])];
        let capture = Capture::new(&kinds);
        let machine = load(Source::Capture(capture.path().to_owned())).unwrap();
        assert!(machine.cores.iter().all(|core| core.capacity == 1.0));
        let picture = draw(&machine, &DrawOptions::default());
        assert!(!picture.contains("capacity"), "{picture}");
    }
    // Core i9-13900K: two favoured performance cores, as Linux 6.12 rates them.
    let kind = |count, mhz, capacity, counters| Cores {
        count,
        mhz,
        capacity,
        counters,
        ..OTHER
    };
    for capacities in [[0, 0, 0], [1024, 971, 600]] {
        let kinds = [
            kind(2, 5800, capacities[0], ""),
            kind(6, 5500, capacities[1], ""),
            kind(16, 4300, capacities[2], ""),
        ];
        let capture = Capture::new(&kinds);
        capture.write("sys/devices/cpu_core/cpus", "0-7\n");
        capture.write("sys/devices/cpu_atom/cpus", "8-23\n");
        let machine = load(Source::Capture(capture.path().to_owned())).unwrap();
        let capacities: Vec<f64> = machine.cores.iter().map(|core| core.capacity).collect();
        assert!(capacities[..8].iter().all(|c| *c == 1.0), "{capacities:?}");
        let slow = capacities[8];
        assert!(slow < 0.65 && capacities[8..].iter().all(|c| *c == slow));
    }
}
