// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU time against the kernel's own accounts (`getrusage`).

#![allow(clippy::unwrap_used)] // a test that cannot go on fails

mod common;

use common::{Cgroup, Program, has_rung, look, meter, turn, wait_until};
use usher_meter::{Meter, Party, User, Wanted};
use usher_model::{Metering, ProgramId, Resource};

const PROGRAM: ProgramId = ProgramId(42);
/// What starting, ending and a tick may add to what a program knows of itself.
const SLACK_NS: u64 = 30_000_000;

fn background_ns(metering: &Metering) -> u64 {
    metering.background[&PROGRAM].cpu_ns
}

/// The program's own word in nanoseconds, and the meter's, which must agree.
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
    let before = look(&mut meter);
    let used_us = program.number();
    let after = look(&mut meter);
    assert_counted(background_ns(&after) - background_ns(&before), used_us);
    let users = meter.top_users(Resource::Cpu);
    // By its party: a container has other numbers than the kernel.
    let is_ours = |user: &&User| user.party == Party::Background(PROGRAM);
    let of_program = users.iter().find(is_ours).unwrap();
    assert_eq!(of_program.comm, "usher-meter-rig");
    program.end();
    drop(program);
    std::fs::remove_dir(&below).unwrap();
}

#[test]
fn without_a_cgroup_descendants_are_background_wherever_they_go() {
    let _turn = turn();
    let Some(mut meter) = common::meter_by_processes("programs without a cgroup") else {
        return;
    };
    let mut program = Program::start(&["daemon", "200"], None);
    meter.manage(PROGRAM, None, program.id()).unwrap();
    let before = look(&mut meter);
    // The grandchild answers; its parents have ended by then or soon.
    let used_us = program.number();
    let after = look(&mut meter);
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
    let before = look(&mut meter);
    let used_us = program.number();
    let after = look(&mut meter);
    assert_counted(background_ns(&after) - background_ns(&before), used_us);
}

#[test]
fn what_was_used_before_stays_foregrounds() {
    let _turn = turn();
    let Some(mut meter) = common::meter_by_processes("changing sides") else {
        return;
    };
    let mut program = Program::start(&["burn", "300"], None);
    let before = look(&mut meter);
    let used_us = program.number();
    meter.manage(PROGRAM, None, program.id()).unwrap();
    let after = look(&mut meter);
    assert!(
        background_ns(&after) < SLACK_NS,
        "{}",
        background_ns(&after)
    );
    let foreground = after.foreground.cpu_ns - before.foreground.cpu_ns;
    assert!(foreground + SLACK_NS >= used_us * 1000);
    meter.forget(PROGRAM);
    assert!(look(&mut meter).background.is_empty());
}

#[test]
fn ten_thousand_processes_that_hardly_lived_are_counted() {
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
    // The kernel frees a process a grace period after its end.
    let mut counted_ns = 0;
    wait_until("the last processes to be freed", || {
        counted_ns = background_ns(&look(&mut meter));
        counted_ns >= used_ns - used_ns / 50
    });
    assert!(
        counted_ns <= used_ns + used_ns / 10 + SLACK_NS,
        "{counted_ns} counted, {used_ns} used"
    );
    let is_told = |reason: &String| reason.contains(common::BY_A_CONTAINER);
    assert!(meter.reasons().iter().all(is_told));
}

/// Has the program compute; its time must be neither side's.
fn assert_ignored(meter: &mut Meter, program: &mut Program) {
    let before = look(meter);
    let used_us = program.number();
    let after = look(meter);
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
    let users = meter.top_users(Resource::Cpu);
    let is_ours = |user: &&User| user.comm == "usher-meter-rig";
    let of_program = users.iter().find(is_ours).unwrap();
    assert_eq!(of_program.party, Party::Ignored);
}

/// Has the program run when nobody else wants to.
fn set_idle(program: &Program) {
    // SAFETY: all zeros are a value; the call reads it and no more.
    let done = unsafe {
        let lowest: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(program.pid(), libc::SCHED_IDLE, &raw const lowest)
    };
    assert_eq!(done, 0);
}

#[test]
fn who_runs_when_nobody_else_does_is_not_foreground() {
    let _turn = turn();
    let Some(mut meter) = meter("SCHED_IDLE") else {
        return;
    };
    let mut program = Program::start(&["burn", "200"], None);
    set_idle(&program);
    assert_ignored(&mut meter, &mut program);
}

/// Set for the copy of this test that runs in a container.
const CONTAINED: &str = "USHER_METER_CONTAINED";

#[test]
fn in_a_container_too_the_meter_does_not_take_itself_for_foreground() {
    if std::env::var_os(CONTAINED).is_some() {
        return burn_and_look();
    }
    let _turn = turn();
    let name = "in_a_container_too_the_meter_does_not_take_itself_for_foreground";
    let of_its_own = ["--pid", "--fork", "--kill-child"];
    let works = std::process::Command::new("unshare")
        .args(of_its_own)
        .arg("true")
        .output();
    if !works.is_ok_and(|made| made.status.success()) {
        usher_skip::skip!("containers: want `unshare` and root");
        return;
    }
    let contained = std::process::Command::new("unshare")
        .args(of_its_own)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CONTAINED, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&contained.stderr);
    assert!(contained.status.success(), "{said}");
    eprint!("{said}");
}

fn burn_and_look() {
    const BURNT_NS: u64 = 200_000_000;
    assert!(std::process::id() < 100, "a container numbers from 1");
    let Some(mut meter) = meter("containers") else {
        return;
    };
    let before = look(&mut meter);
    let used_ns = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    let begun_ns = used_ns();
    while used_ns() - begun_ns < BURNT_NS {}
    let after = look(&mut meter);
    let ignored = after.ignored.cpu_ns - before.ignored.cpu_ns;
    assert!(ignored + SLACK_NS >= BURNT_NS, "{ignored}");
}

#[test]
fn totals_never_fall() {
    let _turn = turn();
    let Some(mut meter) = common::meter_by_processes("churn") else {
        return;
    };
    let mut program = Program::start(&["storm", "3000"], None);
    program.go();
    let mut before = look(&mut meter);
    for round in 0..200u64 {
        if round % 20 == 0 {
            meter.manage(ProgramId(round), None, program.id()).unwrap();
        }
        if round % 20 == 10 {
            meter.forget(ProgramId(round - 10));
        }
        let now = look(&mut meter);
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
    let before = look(&mut meter);
    program.number();
    let after = look(&mut meter);
    let of = |metering: &Metering| metering.foreground.cpu_ns + metering.ignored.cpu_ns;
    let passed = (after.cpu_read_ns - before.cpu_read_ns) * u64::from(after.cpus);
    let told = of(&after) - of(&before) + after.idle_ns - before.idle_ns;
    // Interrupts and what a hypervisor takes are neither.
    assert!(
        told <= passed + passed / 10 + 4 * SLACK_NS,
        "{told} of {passed}"
    );
}

/// Has the program run on that CPU alone.
fn bind(program: &Program, cpu: usize) {
    let to = rustix::process::Pid::from_raw(program.pid());
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(to, &cpus).unwrap();
}

#[test]
fn a_crowd_beside_background_work_is_seen() {
    let _turn = turn();
    let (Some(mut meter), Some(cgroup)) = (meter("crowds"), Cgroup::make("crowds")) else {
        return;
    };
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let allowed: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect();
    let first = look(&mut meter);
    let (&crowded, others) = allowed.split_first().unwrap();
    // With a CPU that is nobody's to use it may be idle, and nothing is crowded.
    if others.is_empty() || first.idle_cpus.is_none() || first.cpus as usize != allowed.len() {
        let reasons = meter.reasons();
        usher_skip::skip!("crowds: CPUs {allowed:?}, {reasons:?}");
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
    meter.ring_for(Wanted {
        crowds: true,
        vacancies: false,
    });
    // Three share a CPU, but there is room.
    let mut crowd = [(); 3].map(|()| Program::start(&["burn", "200"], None));
    crowd.iter().for_each(|program| bind(program, crowded));
    let before = look(&mut meter).rq_imbalances;
    crowd.iter_mut().for_each(Program::go);
    crowd.iter_mut().for_each(|program| {
        program.line();
    });
    assert_eq!(look(&mut meter).rq_imbalances, before);

    let mut crowd = [(); 2].map(|()| Program::start(&["burn", "1000000"], None));
    crowd.iter().for_each(|program| bind(program, crowded));
    background.iter_mut().for_each(Program::go);
    crowd.iter_mut().for_each(Program::go);
    wait_until("a crowd to be seen", || {
        look(&mut meter).rq_imbalances > before
    });
    wait_until("the bell", || has_rung(&meter));
    drop(crowd);

    look(&mut meter);
    meter.ring_for(Wanted {
        crowds: false,
        vacancies: true,
    });
    wait_until("the bell for a vacant CPU", || has_rung(&meter));
    wait_until("a vacancy", || {
        let idle_cpus = look(&mut meter).idle_cpus;
        idle_cpus.is_some_and(|idle| idle.since_ns.is_some())
    });
    let costs = meter.costs();
    let watch = costs.iter().find(|cost| cost.name == "look_for_crowds");
    assert!(watch.is_some_and(|watch| watch.runs > 0 && watch.run_ns > 0));
}
