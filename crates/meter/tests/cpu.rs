// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of metered CPU time, waits and idle time with real programs, compared with the kernel's
//! own accounting (`getrusage`): owners by cgroup and by descent, short processes, services,
//! imbalances.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use common::{Cgroup, Program, is_notified, meter, sample, turn, wait_until};
use usher_meter::{Meter, NotifyOn, OwnerClass, ProcessShare};
use usher_model::{Metering, ProgramId, Resource};

const PROGRAM: ProgramId = ProgramId(42);
/// Tolerance in nanoseconds. The tolerance covers the start and end of the program and one clock
/// tick, which the program's own measurement does not contain.
const SLACK_NS: u64 = 30_000_000;

fn background_ns(metering: &Metering) -> u64 {
    metering.background[&PROGRAM].cpu_ns
}

/// Checks that the CPU time counted by the meter agrees with the program's own measurement.
fn assert_counted(counted_ns: u64, used_us: u64) {
    let used_ns = used_us * 1000;
    let tolerance_ns = SLACK_NS + used_ns / 50;
    assert!(
        counted_ns.abs_diff(used_ns) <= tolerance_ns,
        "{counted_ns} counted, {used_ns} used"
    );
}

#[test]
fn a_child_in_a_managed_cgroup_is_background() {
    let _turn = turn();
    let (Some(mut meter), Some(cgroup)) = (meter("cgroups"), Cgroup::make("burn")) else {
        return;
    };
    let below = cgroup.0.join("below");
    std::fs::create_dir(&below).unwrap();
    let mut program = Program::start(&["burn", "200"], Some(&below));
    let managed = meter.manage(PROGRAM, Some(&cgroup.0), program.id());
    managed.unwrap();
    let before = sample(&mut meter);
    let used_us = program.number();
    let after = sample(&mut meter);
    assert_counted(background_ns(&after) - background_ns(&before), used_us);
    let processes = meter.top_processes(Resource::Cpu);
    // The process is found by its owner class, because its pid in a container differs from its pid
    // in the initial namespace.
    let is_ours = |process: &&ProcessShare| process.owner == OwnerClass::Background(PROGRAM);
    let of_program = processes.iter().find(is_ours).unwrap();
    assert_eq!(of_program.comm, "usher-meter-rig");
    program.end();
    drop(program);
    std::fs::remove_dir(&below).unwrap();
}

#[test]
fn without_a_cgroup_all_descendants_are_background() {
    let _turn = turn();
    let Some(mut meter) = common::meter_by_processes("programs without a cgroup") else {
        return;
    };
    let mut program = Program::start(&["daemon", "200"], None);
    meter.manage(PROGRAM, None, program.id()).unwrap();
    let before = sample(&mut meter);
    // The grandchild prints its CPU time. The parents of the grandchild have ended at this time, or
    // end soon.
    let used_us = program.number();
    let after = sample(&mut meter);
    assert_counted(background_ns(&after) - background_ns(&before), used_us);
}

#[test]
fn a_daemon_stays_in_its_cgroup() {
    let _turn = turn();
    let (Some(mut meter), Some(cgroup)) = (meter("daemons"), Cgroup::make("daemon")) else {
        return;
    };
    let mut program = Program::start(&["daemon", "300"], Some(&cgroup.0));
    let managed = meter.manage(PROGRAM, Some(&cgroup.0), program.id());
    managed.unwrap();
    let before = sample(&mut meter);
    let used_us = program.number();
    let after = sample(&mut meter);
    assert_counted(background_ns(&after) - background_ns(&before), used_us);
}

#[test]
fn earlier_use_stays_foreground() {
    let _turn = turn();
    let Some(mut meter) = common::meter_by_processes("a change of owner") else {
        return;
    };
    let mut program = Program::start(&["burn", "300"], None);
    let before = sample(&mut meter);
    let used_us = program.number();
    meter.manage(PROGRAM, None, program.id()).unwrap();
    let after = sample(&mut meter);
    assert!(
        background_ns(&after) < SLACK_NS,
        "{}",
        background_ns(&after)
    );
    let foreground = after.foreground.cpu_ns - before.foreground.cpu_ns;
    assert!(foreground + SLACK_NS >= used_us * 1000);
    meter.forget(PROGRAM);
    assert!(sample(&mut meter).background.is_empty());
}

#[test]
fn ten_thousand_short_lived_processes_are_counted() {
    let _turn = turn();
    let (Some(mut meter), Some(cgroup)) = (meter("storms"), Cgroup::make("storm")) else {
        return;
    };
    let mut program = Program::start(&["storm", "10000"], Some(&cgroup.0));
    meter
        .manage(PROGRAM, Some(&cgroup.0), program.id())
        .unwrap();
    let used = program.numbers();
    let used_ns = (used[0] + used[1]) * 1000;
    // The test polls, because the kernel frees a process only one grace period after its end.
    let mut counted_ns = 0;
    wait_until("the last processes to be freed", || {
        counted_ns = background_ns(&sample(&mut meter));
        counted_ns >= used_ns - used_ns / 50
    });
    assert!(
        counted_ns <= used_ns + used_ns / 10 + SLACK_NS,
        "{counted_ns} counted, {used_ns} used"
    );
    let is_expected = |reason: &String| reason.contains(common::BY_A_CONTAINER);
    assert!(meter.reasons().iter().all(is_expected));
}

/// Lets the program compute, and checks that its CPU time is ignored.
fn assert_ignored(meter: &mut Meter, program: &mut Program) {
    let before = sample(meter);
    let used_us = program.number();
    let after = sample(meter);
    let ignored = after.ignored.cpu_ns - before.ignored.cpu_ns;
    assert!(ignored + SLACK_NS >= used_us * 1000, "{ignored} {used_us}");
}

#[test]
fn a_name_on_the_list_is_ignored() {
    let _turn = turn();
    let config = usher_meter::MeterConfig {
        ignore: vec!["usher-meter-rig-and-more".to_owned()],
        ..Default::default()
    };
    let mut meter = usher_meter::Meter::open(&config);
    if meter.source() != usher_model::MeterSource::Bpf {
        usher_skip::skip!("the list of names: {:?}", meter.reasons());
        return;
    }
    let mut program = Program::start(&["burn", "200"], None);
    assert_ignored(&mut meter, &mut program);
    let processes = meter.top_processes(Resource::Cpu);
    let is_ours = |process: &&ProcessShare| process.comm == "usher-meter-rig";
    let of_program = processes.iter().find(is_ours).unwrap();
    assert_eq!(of_program.owner, OwnerClass::Ignored);
}

/// Sets the policy of the program to SCHED_IDLE.
fn set_idle(program: &Program) {
    // SAFETY: all fields of `sched_param` are numbers, for which zero is valid. The kernel only
    // reads the structure.
    let done = unsafe {
        let lowest: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(program.pid(), libc::SCHED_IDLE, &raw const lowest)
    };
    assert_eq!(done, 0);
}

#[test]
fn sched_idle_tasks_are_ignored() {
    let _turn = turn();
    let Some(mut meter) = meter("SCHED_IDLE") else {
        return;
    };
    let mut program = Program::start(&["burn", "200"], None);
    set_idle(&program);
    assert_ignored(&mut meter, &mut program);
}

/// Environment variable of the copy of this test that runs in a container.
const CONTAINED: &str = "USHER_METER_CONTAINED";

#[test]
fn the_meter_ignores_itself_in_a_container_too() {
    if std::env::var_os(CONTAINED).is_some() {
        return burn_and_sample();
    }
    let _turn = turn();
    let name = "the_meter_ignores_itself_in_a_container_too";
    let of_its_own = ["--pid", "--fork", "--kill-child"];
    let works = std::process::Command::new("unshare")
        .args(of_its_own)
        .arg("true")
        .output();
    if !works.is_ok_and(|made| made.status.success()) {
        usher_skip::skip!("containers: needs `unshare` and root");
        return;
    }
    let contained = std::process::Command::new("unshare")
        .args(of_its_own)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CONTAINED, "1")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&contained.stderr);
    assert!(contained.status.success(), "{stderr}");
    eprint!("{stderr}");
}

fn burn_and_sample() {
    const BURNT_NS: u64 = 200_000_000;
    assert!(std::process::id() < 100, "a container numbers from 1");
    let Some(mut meter) = meter("containers") else {
        return;
    };
    let before = sample(&mut meter);
    let used_ns = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    let begun_ns = used_ns();
    while used_ns() - begun_ns < BURNT_NS {}
    let after = sample(&mut meter);
    let ignored = after.ignored.cpu_ns - before.ignored.cpu_ns;
    assert!(ignored + SLACK_NS >= BURNT_NS, "{ignored}");
}

#[test]
fn totals_never_decrease() {
    let _turn = turn();
    let Some(mut meter) = common::meter_by_processes("churn") else {
        return;
    };
    let mut program = Program::start(&["storm", "3000"], None);
    program.go();
    let mut before = sample(&mut meter);
    for round in 0..200u64 {
        if round % 20 == 0 {
            meter.manage(ProgramId(round), None, program.id()).unwrap();
        }
        if round % 20 == 10 {
            meter.forget(ProgramId(round - 10));
        }
        let now = sample(&mut meter);
        assert!(now.idle_ns >= before.idle_ns);
        for (now, before) in [
            (&now.foreground, &before.foreground),
            (&now.ignored, &before.ignored),
        ] {
            assert!(now.cpu_ns >= before.cpu_ns && now.wait_ns >= before.wait_ns);
            for (disk, uses) in &before.disks {
                assert!(now.disks[disk].sync_sectors >= uses.sync_sectors);
                assert!(now.disks[disk].requests >= uses.requests);
            }
        }
        before = now;
    }
}

#[test]
fn idle_and_busy_time_add_up() {
    let _turn = turn();
    let Some(mut meter) = meter("idle time") else {
        return;
    };
    let mut program = Program::start(&["burn", "300"], None);
    let before = sample(&mut meter);
    program.number();
    let after = sample(&mut meter);
    let of = |metering: &Metering| metering.foreground.cpu_ns + metering.ignored.cpu_ns;
    let passed = (after.cpu_read_ns - before.cpu_read_ns) * u64::from(after.cpus);
    let counted = of(&after) - of(&before) + after.idle_ns - before.idle_ns;
    // The sums contain neither the time of interrupts nor the time of the hypervisor.
    assert!(
        counted <= passed + passed / 10 + 4 * SLACK_NS,
        "{counted} of {passed}"
    );
}

/// Pins the program to one CPU.
fn bind(program: &Program, cpu: usize) {
    let to = rustix::process::Pid::from_raw(program.pid());
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(to, &cpus).unwrap();
}

#[test]
fn an_imbalance_beside_background_work_is_reported() {
    let _turn = turn();
    let (Some(mut meter), Some(cgroup)) = (meter("imbalances"), Cgroup::make("imbalances")) else {
        return;
    };
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let allowed: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect();
    let first = sample(&mut meter);
    let (&shared, others) = allowed.split_first().unwrap();
    // If a CPU outside the affinity mask is idle, there is no imbalance.
    if others.is_empty() || first.idle_cpus.is_none() || first.cpus as usize != allowed.len() {
        let reasons = meter.reasons();
        usher_skip::skip!("imbalances: CPUs {allowed:?}, {reasons:?}");
        return;
    }
    let mut background: Vec<Program> = others
        .iter()
        .map(|&other| {
            let program = Program::start(&["burn", "1000000"], Some(&cgroup.0));
            bind(&program, other);
            set_idle(&program);
            program
        })
        .collect();
    meter
        .manage(PROGRAM, Some(&cgroup.0), background[0].id())
        .unwrap();
    meter.notify_on(NotifyOn {
        imbalances: true,
        vacancies: false,
    });
    // Three threads share a CPU while another CPU is idle. The meter must report no imbalance.
    let mut foreground = [(); 3].map(|()| Program::start(&["burn", "200"], None));
    foreground.iter().for_each(|program| bind(program, shared));
    let before = sample(&mut meter).rq_imbalances;
    foreground.iter_mut().for_each(Program::go);
    foreground.iter_mut().for_each(|program| {
        program.line();
    });
    assert_eq!(sample(&mut meter).rq_imbalances, before);

    let mut foreground = [(); 2].map(|()| Program::start(&["burn", "1000000"], None));
    foreground.iter().for_each(|program| bind(program, shared));
    background.iter_mut().for_each(Program::go);
    foreground.iter_mut().for_each(Program::go);
    wait_until("an imbalance to be reported", || {
        sample(&mut meter).rq_imbalances > before
    });
    wait_until("the notification", || is_notified(&meter));
    drop(foreground);

    sample(&mut meter);
    meter.notify_on(NotifyOn {
        imbalances: false,
        vacancies: true,
    });
    wait_until("the notification of a vacant CPU", || is_notified(&meter));
    wait_until("a vacancy", || {
        let vacancy = sample(&mut meter).idle_cpus;
        vacancy.is_some_and(|vacancy| vacancy.since_ns.is_some())
    });
    let costs = meter.costs();
    let watch = costs.iter().find(|cost| cost.name == "scan_on_timer");
    assert!(watch.is_some_and(|watch| watch.runs > 0 && watch.run_ns > 0));
}
