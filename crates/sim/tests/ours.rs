// SPDX-License-Identifier: MIT OR Apache-2.0
//! Machines under Usher's own scheduler, by the rules of its BPF program.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use usher_model::CpuSet;
use usher_sim::engine::{Engine, News};
use usher_sim::kernel::Kernel;
use usher_sim::machine::{Costs, Machine};
use usher_sim::script::{Memory, Op, Role, Script, Wait};

const MS: u64 = 1_000_000;

fn engine(spec: &str, kernel: Kernel) -> Engine {
    let source = usher_topology::Source::Synthetic(spec.to_owned());
    let machine = Machine::new(usher_topology::load(source).unwrap(), Costs::default());
    Engine::new(machine, kernel, 1)
}

fn script(threads: u32, steps: Vec<Op>) -> Arc<Script> {
    Arc::new(Script {
        name: "p".to_owned(),
        roles: vec![Role { threads, steps }],
        pools: vec![],
        queues: vec![],
        wait: Wait::Block,
        settles: false,
        memory: Memory::default(),
    })
}

fn work(ms: f64) -> Op {
    Op::Work {
        ns: ms * 1e6,
        spread: 0.0,
    }
}

/// Seven programs of two threads beside a thread that sleeps, on two CPUs; until all have
/// ended. How often those went from one program to another, and what each had waited.
fn seven_and_a_sleeper(kernel: Kernel) -> (u64, Vec<f64>) {
    let mut engine = engine("core:2", kernel);
    for _ in 0..7 {
        engine.arrive(script(2, vec![work(1700.0)]), false);
    }
    let steps = vec![
        work(0.3),
        Op::Sleep { ns: 5 * MS },
        Op::Again { to: 0, times: 300 },
    ];
    engine.arrive(script(1, steps), false);
    let mut ended_ms = vec![0.0; 8];
    while ended_ms.contains(&0.0) {
        engine.run(u64::MAX / 2).unwrap();
        engine.audit().unwrap();
        for news in engine.take_news() {
            if let News::Ended(program) = news {
                ended_ms[program] = engine.now_ns() as f64 / MS as f64;
            }
        }
    }
    (engine.space_switches(), ended_ms)
}

fn is_near(got: f64, want: f64, off: f64) -> bool {
    (got / want - 1.0).abs() <= off
}

/// docs/sched-bench.md has what the same load came to in a guest, under the scheduler itself
/// (and under EEVDF): address spaces were switched 1,539 times (14,304), the programs
/// ended after 11.9 to 12.0 s (11.0 to 12.0), and the sleeper was late by 0.07 ms or less
/// in half of its turns.
#[test]
fn address_spaces_are_switched_as_often_as_in_the_lab() {
    let (ours, ended_ms) = seven_and_a_sleeper(Kernel::usher());
    assert!(is_near(ours as f64, 1_539.0, 0.15), "{ours}");
    let [programs @ .., sleeper] = &ended_ms[..] else {
        unreachable!("eight programs have ended");
    };
    assert!(
        programs.iter().all(|&ms| is_near(ms, 11_950.0, 0.01)),
        "{programs:?}"
    );
    let late_ms = sleeper / 300.0 - 5.3;
    assert!((0.0..0.15).contains(&late_ms), "{late_ms}");
    // Its slices on two CPUs.
    let (eevdf, _) = seven_and_a_sleeper(Kernel {
        slice_ns: 1_400_000,
        ..Kernel::default()
    });
    assert!(is_near(eevdf as f64, 14_304.0, 0.2), "{eevdf}");
}

#[test]
fn without_turns_address_spaces_follow_one_another() {
    let (turns, _) = seven_and_a_sleeper(Kernel::usher());
    let (none, _) = seven_and_a_sleeper(Kernel {
        aggregate: false,
        ..Kernel::usher()
    });
    assert!(none > 4 * turns, "{none}, {turns}");
}

/// Who may run on one CPU alone waits for it, though another one is idle; and has it in
/// turn with those who may run on both.
#[test]
fn a_narrowed_program_has_its_cpu_in_turn() {
    let mut engine = engine("core:2", Kernel::usher());
    let narrow: Vec<usize> = (0..2)
        .map(|_| engine.arrive(script(1, vec![work(1e6)]), false))
        .collect();
    for &program in &narrow {
        engine.bind(program, &CpuSet::single(1));
    }
    engine.run(1000 * MS).unwrap();
    engine.audit().unwrap();
    let wide = engine.arrive(script(1, vec![work(1e6)]), false);
    engine.run(2000 * MS).unwrap();
    engine.settle();
    engine.audit().unwrap();
    let had_ms = |program: usize| engine.ledger(program).cpu_ns as f64 / MS as f64;
    assert!(is_near(had_ms(wide), 1000.0, 0.01), "{}", had_ms(wide));
    for &program in &narrow {
        assert!(
            is_near(had_ms(program), 1000.0, 0.05),
            "{}",
            had_ms(program)
        );
    }
}

/// What each of some programs, of one thread each, has had after so long.
fn had_ms(spec: &str, programs: usize, ms: u64) -> Vec<u64> {
    let mut engine = engine(spec, Kernel::usher());
    let arrive = |_| engine.arrive(script(1, vec![work(1e6)]), false);
    let programs: Vec<usize> = (0..programs).map(arrive).collect();
    engine.run(ms * MS).unwrap();
    engine.settle();
    engine.audit().unwrap();
    let had = programs.iter();
    had.map(|&program| engine.ledger(program).cpu_ns / MS)
        .collect()
}

/// On CPUs that share no cache, four on two of which three begin on one; and where numbers
/// cannot be equal, whoever is left over goes round.
#[test]
fn programs_are_divided_among_caches() {
    for (spec, programs, cpus) in [
        ("package:2 core:1", 4, 2),
        ("package:2 core:1", 3, 2),
        ("package:4 core:2", 9, 8),
    ] {
        let had_ms = had_ms(spec, programs, 20_000);
        let due_ms = (20_000 * cpus) as f64 / programs as f64;
        assert!(
            had_ms.iter().all(|&ms| is_near(ms as f64, due_ms, 0.1)),
            "{spec}: {had_ms:?}"
        );
    }
}

/// Not where their memory would be farther away.
#[test]
fn nobody_goes_round_among_nodes() {
    let mut had_ms = had_ms("package:2 [numa:1] core:1", 3, 20_000);
    had_ms.sort_unstable();
    assert!(
        had_ms[..2]
            .iter()
            .all(|&ms| is_near(ms as f64, 10_000.0, 0.02)),
        "{had_ms:?}"
    );
}

#[test]
fn a_machine_beyond_its_tables_is_refused() {
    let load = |spec: &str| {
        usher_topology::load(usher_topology::Source::Synthetic(spec.to_owned())).unwrap()
    };
    let large = load("package:513 core:1");
    Kernel::default().check(&large).unwrap();
    let error = Kernel::usher().check(&large).unwrap_err().to_string();
    assert_eq!(
        error,
        "it has 513 CPUs, and Usher's scheduler places for 512"
    );
    let error = Kernel::usher()
        .check(&load("package:65 core:1"))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "it has 65 last-level caches, and Usher's scheduler queues for 64"
    );
    Kernel::usher().check(&load("package:64 core:8")).unwrap();
}

/// No CPU is idle, and yet threads go where fewer wait, until nearly as many do.
#[test]
fn busy_cpus_look_at_other_domains() {
    let mut engine = engine("package:2 core:2", Kernel::usher());
    let loops: Vec<usize> = (0..10)
        .map(|_| engine.arrive(script(1, vec![work(1e6)]), false))
        .collect();
    // Eight begin on two CPUs.
    for &program in &loops[..2] {
        engine.bind(program, &CpuSet::range(0, 1));
    }
    for &program in &loops[2..] {
        engine.bind(program, &CpuSet::range(2, 3));
    }
    engine.run(100 * MS).unwrap();
    for &program in &loops {
        engine.bind(program, &CpuSet::range(0, 3));
    }
    engine.settle();
    let before: Vec<u64> = loops.iter().map(|&p| engine.ledger(p).cpu_ns).collect();
    engine.run(20_100 * MS).unwrap();
    engine.settle();
    engine.audit().unwrap();
    for (&program, before_ns) in loops.iter().zip(before) {
        let had_ms = (engine.ledger(program).cpu_ns - before_ns) as f64 / MS as f64;
        assert!(is_near(had_ms, 8_000.0, 0.1), "{program}: {had_ms} ms");
    }
}

/// Time in which it was stopped is not owed to a program.
#[test]
fn whoever_was_stopped_has_no_more_than_others_after() {
    let mut engine = engine("core:2", Kernel::usher());
    let loops: Vec<usize> = (0..4)
        .map(|_| engine.arrive(script(1, vec![work(1e6)]), false))
        .collect();
    engine.run(100 * MS).unwrap();
    engine.freeze(loops[0], true);
    engine.run(5_000 * MS).unwrap();
    engine.freeze(loops[0], false);
    engine.settle();
    let before: Vec<u64> = loops.iter().map(|&p| engine.ledger(p).cpu_ns).collect();
    engine.run(6_000 * MS).unwrap();
    engine.settle();
    for (&program, before_ns) in loops.iter().zip(before) {
        let had_ms = (engine.ledger(program).cpu_ns - before_ns) as f64 / MS as f64;
        assert!(is_near(had_ms, 500.0, 0.1), "{program}: {had_ms} ms");
    }
}
