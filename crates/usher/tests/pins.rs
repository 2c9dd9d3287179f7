// SPDX-License-Identifier: GPL-2.0-only
//! Programs that pin their threads: `status` and `explain` give the reason why they have no seat.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Sleeper, World, allowed, stdout, wait_for};
use serde_json::{Value, json};
use usher_model::CpuSet;

/// Pins a process, as the process itself could by `sched_setaffinity`.
fn pin(sleeper: &Sleeper, cpus: &str) {
    let mut set = rustix::thread::CpuSet::new();
    let cpus: CpuSet = cpus.parse().unwrap();
    cpus.iter().for_each(|cpu| set.set(cpu as usize));
    let pid = rustix::process::Pid::from_raw(sleeper.pid());
    rustix::thread::sched_setaffinity(pid, &set).unwrap();
}

fn program_of(world: &World, sleeper: &Sleeper) -> Option<Value> {
    let status = world.status();
    let programs = status["programs"].as_array()?;
    let own = |one: &&Value| one["pid"] == json!(sleeper.pid());
    programs.iter().find(own).cloned()
}

#[test]
fn a_program_that_pins_itself_has_no_seat_and_a_reason() {
    let all = allowed(std::process::id() as i32).unwrap();
    let cpus: Vec<u32> = all.parse::<CpuSet>().unwrap().iter().collect();
    if cpus.len() < 2 {
        usher_skip::skip!("needs two CPUs");
        return;
    }
    let mut world = World::new();
    world.daemon(&["--policy", "equal"]);
    let sleepers = [Sleeper::start(), Sleeper::start()];
    for sleeper in &sleepers {
        let pid = sleeper.pid().to_string();
        assert!(world.run(&["attach", &pid]).status.success());
    }
    // If the machine has two equal parts, each program has one of them as its seat. The first
    // program then pins itself to a CPU of the other program's seat.
    let [first, other] = &sleepers;
    let seat = wait_for("a seat", || {
        let program = program_of(&world, first)?;
        assert_eq!(program["pinned_to"], Value::Null);
        program["cpus"].as_str().map(str::to_owned)
    });
    let seat: CpuSet = seat.parse().unwrap();
    let outside = cpus.iter().find(|&&cpu| !seat.contains(cpu));
    let Some(outside) = outside.map(u32::to_string) else {
        usher_skip::skip!("two programs cannot be seated apart here");
        return;
    };
    pin(first, &outside);
    let program = wait_for("the pin to be noticed", || {
        let program = program_of(&world, first)?;
        (program["pinned_to"] == json!(outside)).then_some(program)
    });
    assert_eq!(
        (&program["cpus"], &program["mode"]),
        (&json!(""), &json!("shared"))
    );
    wait_for("the other program to leave that CPU", || {
        let mask: CpuSet = allowed(other.pid())?.parse().unwrap();
        (!mask.contains(outside.parse().unwrap())).then_some(())
    });
    assert_eq!(allowed(first.pid()).unwrap(), outside);
    let status = stdout(&world.run(&["status"]));
    let reason = format!("(pinned threads to {outside})");
    assert!(status.contains(&reason), "{status}");
    let explained = stdout(&world.run(&["explain", &first.pid().to_string()]));
    let words: Vec<_> = explained.split_whitespace().collect();
    let reason = format!("has no seat, because it pinned threads to CPU {outside}");
    assert!(words.join(" ").contains(&reason), "{explained}");
    // After the program has removed its pin, the daemon seats it again.
    pin(first, &all);
    wait_for("a seat again", || {
        let program = program_of(&world, first)?;
        (program["pinned_to"] == Value::Null && program["cpus"] != json!("")).then_some(())
    });
    assert!(
        world
            .run(&["detach", &first.pid().to_string()])
            .status
            .success()
    );
    wait_for("its own mask", || {
        (allowed(first.pid())? == all).then_some(())
    });
}
