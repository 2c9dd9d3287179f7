// SPDX-License-Identifier: MIT OR Apache-2.0
//! `eii` and `ipd` compared with a transcription of paper 2, step by step.

use proptest::prelude::*;
use usher_model::*;
use usher_policy::{Policy, Thresholds, by_name_with};

use crate::world::*;

const PERIOD_MS: u64 = 100;
const CPUS: u64 = 2;

/// Demand in one period of 100 ms.
#[derive(Debug, Clone, Copy)]
struct PeriodDemand {
    /// CPU milliseconds that the foreground needs, of 200 ms in a period of two CPUs.
    fg_cpu: u64,
    bg_cpu: u64,
    fg_sectors: u64,
    bg_sectors: u64,
    fg_sends: u64,
    bg_sends: u64,
}

fn period_demand() -> impl Strategy<Value = PeriodDemand> {
    let mostly_zero = || prop_oneof![3 => Just(0u64), 1 => 1..100u64];
    let cpu = || prop_oneof![2 => 0..30u64, 1 => 0..200u64];
    (
        cpu(),
        1..200u64,
        mostly_zero(),
        1..100u64,
        mostly_zero(),
        1..100u64,
    )
        .prop_map(
            |(fg_cpu, bg_cpu, fg_sectors, bg_sectors, fg_sends, bg_sends)| PeriodDemand {
                fg_cpu,
                bg_cpu: bg_cpu.min(200 - fg_cpu.min(199)),
                fg_sectors,
                bg_sectors,
                fg_sends,
                bg_sends,
            },
        )
}

/// Long stretches of equal demand, in which stops end and later stops become longer.
fn period_demands() -> impl Strategy<Value = Vec<PeriodDemand>> {
    let stretch = (period_demand(), 1..250usize)
        .prop_map(|(period_demand, times)| vec![period_demand; times]);
    prop::collection::vec(stretch, 1..8).prop_map(|all| all.concat())
}

/// Contention test of section 4: the background share is below the threshold. For the CPUs, also
/// less than a quarter of the CPU time must be idle.
fn contends(w: &PeriodDemand) -> bool {
    let below = |bg: u64, fg: u64, percent: u64| bg * 100 < percent * (bg + fg);
    let idle_ms = (PERIOD_MS * CPUS).saturating_sub(w.fg_cpu + w.bg_cpu);
    let cpu = below(w.bg_cpu, w.fg_cpu, 85) && idle_ms * 4 < PERIOD_MS * CPUS;
    cpu || below(w.bg_sectors, w.fg_sectors, 100) || below(w.bg_sends, w.fg_sends, 100)
}

/// Section 5, EII: whether the program runs in each period.
fn eii(period_demands: &[PeriodDemand]) -> Vec<bool> {
    let mut runs = vec![];
    let (mut left, mut stop, mut on_trial) = (0u64, 10u64, false);
    for period_demand in period_demands {
        if left > 0 {
            left -= 1;
            on_trial = true;
            runs.push(false);
            continue;
        }
        runs.push(true);
        if contends(period_demand) {
            stop = if on_trial { (stop * 2).min(160) } else { 10 };
            left = stop;
        } else {
            stop = 10;
        }
        on_trial = false;
    }
    runs
}

/// Section 5, IPD: whether the program runs in each period.
fn ipd(period_demands: &[PeriodDemand]) -> Vec<bool> {
    let mut runs = vec![];
    let mut is_stopped = false;
    for w in period_demands {
        runs.push(!is_stopped);
        is_stopped = match is_stopped {
            false => contends(w),
            true => {
                let idle_ms = PERIOD_MS * CPUS - w.fg_cpu;
                let idle = idle_ms * 100 > 62 * PERIOD_MS * CPUS;
                !(idle && w.fg_sectors == 0 && w.fg_sends == 0)
            }
        };
    }
    runs
}

/// Whether the policy runs the program in each period.
fn regulate(period_demands: &[PeriodDemand], regulation: Regulation) -> Vec<bool> {
    let mut policy = regulated(CPUS as u32);
    let mut metering = no_metering(CPUS as u32);
    metering.background.insert(ProgramId(1), Usage::default());
    let arrives = Event::Arrived(Box::new(program(1, Some(regulation))));
    let mut events = vec![arrives];
    let (mut runs, mut running, mut wake_ns) = (vec![], true, 0);
    for (k, period_demand) in period_demands.iter().enumerate() {
        let at_ns = k as u64 * PERIOD_MS * MS;
        if at_ns >= wake_ns {
            metering.cpu_read_ns = at_ns;
            let observation = Observation {
                at_ns,
                usable: CpuSet::range(0, CPUS as u32 - 1),
                events: std::mem::take(&mut events),
                failed: vec![],
                programs: vec![],
                metering: Some(metering.clone()),
            };
            let decision = policy.decide(&observation);
            for action in &decision.actions {
                match action {
                    Action::Freeze { .. } => running = false,
                    Action::Thaw { .. } => running = true,
                    Action::Demote { to, .. } => assert_eq!(*to, Demotion::Nice),
                    other => panic!("{other:?}"),
                }
            }
            wake_ns = at_ns + decision.wake_after_ns.unwrap();
        }
        runs.push(running);
        pass(&mut metering, period_demand, running);
    }
    runs
}

fn pass(metering: &mut Metering, period_demand: &PeriodDemand, running: bool) {
    let bg = u64::from(running);
    let (Resource::Disk(disk), Resource::Link(link)) = (DISK, LINK) else {
        unreachable!()
    };
    let add = |usage: &mut Usage, cpu_ms: u64, sectors: u64, sends: u64| {
        usage.cpu_ns += cpu_ms * MS;
        let disk = usage.disks.entry(disk).or_default();
        disk.sync_sectors += sectors;
        disk.requests += u64::from(sectors > 0);
        usage.links.entry(link).or_default().sends += sends;
    };
    add(
        &mut metering.foreground,
        period_demand.fg_cpu,
        period_demand.fg_sectors,
        period_demand.fg_sends,
    );
    // Always-on services must not count.
    add(&mut metering.ignored, 77, 1234, 99);
    let usage = metering.background.get_mut(&ProgramId(1)).unwrap();
    add(
        usage,
        bg * period_demand.bg_cpu,
        bg * period_demand.bg_sectors,
        bg * period_demand.bg_sends,
    );
    let busy_ms = period_demand.fg_cpu + bg * period_demand.bg_cpu;
    metering.idle_ns += (PERIOD_MS * CPUS).saturating_sub(busy_ms) * MS;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn eii_does_what_the_paper_says(period_demands in period_demands()) {
        prop_assert_eq!(regulate(&period_demands, Regulation::Eii), eii(&period_demands));
    }

    #[test]
    fn ipd_does_what_the_paper_says(period_demands in period_demands()) {
        prop_assert_eq!(regulate(&period_demands, Regulation::Ipd), ipd(&period_demands));
    }
}

#[test]
fn stops_double_up_to_16_s_and_reset_to_1_s() {
    let busy = PeriodDemand {
        fg_cpu: 0,
        bg_cpu: 10,
        fg_sectors: 50,
        bg_sectors: 50,
        fg_sends: 0,
        bg_sends: 1,
    };
    let quiet = PeriodDemand {
        fg_sectors: 0,
        ..busy
    };
    let mut period_demands = vec![busy; 800];
    period_demands.extend(vec![quiet; 200]);
    period_demands.extend(vec![busy; 30]);
    let runs = regulate(&period_demands, Regulation::Eii);
    let stops: Vec<_> = runs
        .chunk_by(|a, b| a == b)
        .filter(|turn| !turn[0])
        .map(<[_]>::len)
        .collect();
    assert_eq!(stops, [10, 20, 40, 80, 160, 160, 160, 160, 160, 10, 18]);
}

#[test]
fn a_trial_waits_for_rare_cpu_times() {
    // CPU times are read every 300 ms: a trial lasts until CPU times of the trial are available.
    let mut world = World::new(2);
    world.cpu_every_ns = 300 * MS;
    world.leak = 0.5;
    let always = Step {
        work: 1_000_000,
        pause_ns: 0,
    };
    let mut foreground = Foreground::new(Resource::Cpu, vec![always]);
    foreground.threads = 2;
    world.foreground.push(foreground);
    world.arrive(1, Regulation::Eii, Resource::Cpu, 2);
    world.run_regulated(60 * S);
    assert_eq!(world.bg(1).stops, 7, "1, 2, 4, 8, 16, 16, 16 s");
    assert!(world.bg(1).work_ns < 4 * S, "trials are short");
}

#[test]
fn background_shares_are_summed_and_each_program_stops_for_its_own_resources() {
    let mut world = World::new(2).device(DISK, MS).device(LINK, MS);
    let often = Step {
        work: 1,
        pause_ns: 20 * MS,
    };
    world.foreground.push(Foreground::new(DISK, vec![often]));
    for regulation in [Regulation::Eii, Regulation::Ipd] {
        let first = 10 * (1 + regulation as u64);
        world.arrive(first, regulation, DISK, 1);
        world.arrive(first + 1, regulation, DISK, 1);
        world.arrive(first + 2, regulation, LINK, 1);
    }
    world.run_regulated(500 * MS);
    let stopped = world.background.iter().filter(|(_, bg)| bg.frozen);
    let stopped: Vec<_> = stopped.map(|(id, _)| id.0).collect();
    assert_eq!(stopped, [20, 21, 30, 31]);
}

#[test]
fn thresholds_can_be_configured() {
    let stops = |thresholds: Thresholds| {
        let mut policy = by_name_with("linux", &topology(2), thresholds).unwrap();
        let mut world = World::new(2);
        world.leak = 0.5;
        let always = Step {
            work: 1_000_000,
            pause_ns: 0,
        };
        world
            .foreground
            .push(Foreground::new(Resource::Cpu, vec![always]));
        world.arrive(1, Regulation::Eii, Resource::Cpu, 2);
        world.run(&mut *policy, S);
        world.bg(1).stops
    };
    let papers = Thresholds::default();
    assert_eq!(stops(papers), 1);
    assert_eq!(stops(Thresholds { cpu: 0.1, ..papers }), 0);
    assert_eq!(
        stops(Thresholds {
            idle: 0.0,
            ..papers
        }),
        0
    );
}
