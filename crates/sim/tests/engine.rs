// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the simulated machine and its kernel: properties that hold for all parameters, such as
//! fair shares, durations of sleeps, the costs of cache bounces, and memory contention.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use usher_model::*;
use usher_sim::engine::{Engine, SimEvent};
use usher_sim::kernel::Kernel;
use usher_sim::machine::{Costs, Machine};
use usher_sim::script::{BarrierWait, Memory, Op, Script, ThreadKind};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// Returns a topology of `domains` domains, each with `cores_each` cores of `threads` hardware
/// threads.
fn topology(domains: usize, cores_each: usize, threads: usize) -> Topology {
    let spec = format!("package:{domains} numa:1 core:{cores_each} pu:{threads}");
    usher_topology::load(usher_topology::Source::Synthetic(spec)).unwrap()
}

fn engine(domains: usize, cores_each: usize, threads: usize) -> Engine {
    engine_with(Kernel::default(), domains, cores_each, threads)
}

fn engine_with(kernel: Kernel, domains: usize, cores_each: usize, threads: usize) -> Engine {
    let costs = Costs {
        node_gbps: 16.0,
        core_speed: 1.0,
        ..Costs::default()
    };
    let machine = Machine::new(topology(domains, cores_each, threads), costs);
    Engine::new(machine, kernel, 7)
}

fn program(threads: u32, steps: Vec<Op>) -> Arc<Script> {
    let script = Script {
        name: "p".into(),
        roles: vec![ThreadKind { threads, steps }],
        pools: vec![],
        queues: vec![],
        wait: BarrierWait::Block,
        adaptive_spin: false,
        memory: Memory::default(),
    };
    script.check().unwrap();
    Arc::new(script)
}

fn work(seconds: f64) -> Op {
    Op::Work {
        ns: seconds * 1e9,
        spread: 0.0,
    }
}

/// Runs the machine until each program has completed its work once, and returns the durations in
/// seconds.
fn times(engine: &mut Engine, programs: usize) -> Vec<f64> {
    let mut times = vec![0.0; programs];
    let mut left = programs;
    while left > 0 {
        engine.run(1_000 * SECOND).unwrap();
        for event in engine.take_sim_events() {
            if let SimEvent::Repeated { program, seconds } = event {
                times[program] = seconds;
                left -= 1;
            }
        }
        assert!(engine.now_ns() < 1_000 * SECOND, "{times:?}");
    }
    times
}

fn near(got: f64, want: f64, tolerance: f64) {
    assert!((got / want - 1.0).abs() < tolerance, "{got} against {want}");
}

#[test]
fn one_thread_takes_as_long_as_its_work() {
    let mut engine = engine(1, 1, 1);
    engine.arrive(program(1, vec![work(1.0)]), false);
    near(times(&mut engine, 1)[0], 1.0, 1e-3);
}

#[test]
fn programs_on_one_cpu_share_it_evenly_regardless_of_thread_counts() {
    let mut engine = engine(1, 1, 1);
    engine.arrive(program(1, vec![work(1.0)]), false);
    engine.arrive(program(3, vec![work(1.0 / 3.0)]), false);
    let times = times(&mut engine, 2);
    near(times[0], 2.0, 0.02);
    near(times[1], 2.0, 0.02);
}

#[test]
fn cfs_shares_one_cpu_evenly_between_threads() {
    let mut engine = engine_with(Kernel::cfs(), 1, 1, 1);
    engine.arrive(program(3, vec![work(2.0)]), false);
    engine.arrive(program(1, vec![work(1.0)]), false);
    near(times(&mut engine, 2)[1], 4.0, 0.02);
}

/// Returns the mean time of a sleep and the work after it, for a thread beside a thread that never
/// sleeps.
fn sleep_beside_busy_thread(kernel: Kernel, work_ms: f64) -> f64 {
    let mut engine = engine_with(kernel, 1, 1, 1);
    let naps = vec![
        Op::Sleep { ns: 10 * MS },
        work(work_ms / 1e3),
        Op::Loop { to: 0, times: 100 },
    ];
    engine.arrive(program(1, vec![work(60.0)]), false);
    let sleeper = engine.arrive(program(1, naps), false);
    loop {
        engine.run(100 * SECOND).unwrap();
        for event in engine.take_sim_events() {
            if let SimEvent::Repeated { program, seconds } = event
                && program == sleeper
            {
                return seconds * 10.0;
            }
        }
    }
}

#[test]
fn cfs_runs_woken_threads_at_once_up_to_their_share() {
    // The thread works for 2 ms of 12 ms, less than its half of the CPU, so that it never waits.
    near(sleep_beside_busy_thread(Kernel::cfs(), 2.0), 12.0, 0.02);
    // The thread requests 30 ms of 40 ms, more than its half of the CPU. It receives at least half.
    let long = sleep_beside_busy_thread(Kernel::cfs(), 30.0);
    assert!((45.0..70.0).contains(&long), "{long}");
    // Without credit for its sleep, the thread waits until the slice of the busy thread ends.
    let strict = Kernel {
        latency_ns: 0,
        ..Kernel::cfs()
    };
    assert!(sleep_beside_busy_thread(strict, 2.0) > 12.5);
}

#[test]
fn cache_bounce_cost_grows_with_the_number_of_cpus() {
    let contended = |cpus: usize| {
        let mut engine = engine(1, 8, 1);
        let steps = vec![
            work(0.001),
            Op::CacheBounce {
                per_cpu: 100_000.0,
                power: 2.0,
            },
            Op::Loop { to: 0, times: 10 },
        ];
        let id = engine.arrive(program(8, steps), false);
        let seat: Vec<String> = (0..cpus).map(|cpu| cpu.to_string()).collect();
        engine.seat(id, Some(&seat.join(",").parse().unwrap()));
        times(&mut engine, 1)[0]
    };
    // With n CPUs, each thread needs 0.1 ms * n * n / 16 for cache lines after 1 ms of work.
    near(contended(8), 10.0 * (0.001 + 0.4e-3), 0.01);
    near(contended(4), 20.0 * (0.001 + 0.1e-3), 0.03);
}

#[test]
fn cache_bounce_cost_survives_preemption() {
    let mut engine = engine(1, 1, 1);
    let steps = vec![
        work(0.001),
        Op::CacheBounce {
            per_cpu: 1e9,
            power: 1.0,
        },
    ];
    let script = (*program(1, steps)).clone();
    engine.arrive(Arc::new(script), false);
    engine.arrive(program(1, vec![work(1.0)]), false);
    // Each program has one second of work and half of the CPU.
    near(times(&mut engine, 2)[0], 2.0, 0.02);
}

#[test]
fn idle_cpus_pull_work() {
    let mut engine = engine(2, 2, 1);
    engine.arrive(program(4, vec![work(1.0)]), false);
    engine.arrive(program(4, vec![work(1.0)]), false);
    let times = times(&mut engine, 2);
    near(times[0].max(times[1]), 2.0, 0.05);
}

#[test]
fn seat_confines_a_program_until_release() {
    let mut engine = engine(1, 4, 1);
    let program = engine.arrive(program(4, vec![work(1.0)]), false);
    engine.seat(program, Some(&CpuSet::range(0, 1)));
    engine.run(SECOND).unwrap();
    engine.seat(program, None);
    near(times(&mut engine, 1)[0], 1.5, 0.02);
}

#[test]
fn frozen_program_makes_no_progress() {
    let mut engine = engine(1, 2, 1);
    let program = engine.arrive(program(2, vec![work(1.0)]), false);
    engine.run(SECOND / 2).unwrap();
    engine.freeze(program, true);
    engine.run(3 * SECOND).unwrap();
    engine.freeze(program, false);
    near(times(&mut engine, 1)[0], 3.5, 1e-2);
}

#[test]
fn program_moves_away_from_offline_cpus() {
    let mut engine = engine(1, 4, 1);
    let program = engine.arrive(program(1, vec![work(1.0)]), false);
    engine.seat(program, Some(&CpuSet::range(0, 0)));
    engine.run(SECOND / 2).unwrap();
    engine.set_online(&CpuSet::range(1, 3));
    near(times(&mut engine, 1)[0], 1.0, 1e-2);
}

#[test]
fn slowest_thread_determines_barrier_time() {
    let mut engine = engine(1, 4, 1);
    let steps = vec![
        Op::Work {
            ns: 1e6,
            spread: 0.5,
        },
        Op::Barrier(0),
        Op::Loop { to: 0, times: 1000 },
    ];
    engine.arrive(program(4, steps), false);
    // 1.3 is the expected maximum of four values that are uniformly distributed from 0.5 to 1.5.
    near(times(&mut engine, 1)[0], 1.3, 0.03);
}

#[test]
fn lock_is_held_by_one_thread() {
    let mut engine = engine(1, 4, 1);
    let steps = vec![
        Op::Lock(0),
        work(1e-3),
        Op::Unlock(0),
        Op::Loop { to: 0, times: 250 },
    ];
    engine.arrive(program(4, steps), false);
    near(times(&mut engine, 1)[0], 1.0, 0.02);
}

#[test]
fn pipeline_runs_at_the_rate_of_its_slowest_stage_and_ends() {
    let mut engine = engine(1, 8, 1);
    let role = |threads, steps| ThreadKind { threads, steps };
    let script = Script {
        name: "pipe".into(),
        roles: vec![
            role(
                1,
                vec![work(1e-3), Op::Put(0), Op::Loop { to: 0, times: 1000 }],
            ),
            role(
                4,
                vec![
                    Op::Take(0),
                    work(8e-3),
                    Op::Put(1),
                    Op::Loop {
                        to: 0,
                        times: u32::MAX,
                    },
                ],
            ),
            role(
                1,
                vec![
                    Op::Take(1),
                    work(1e-3),
                    Op::Loop {
                        to: 0,
                        times: u32::MAX,
                    },
                ],
            ),
        ],
        pools: vec![],
        queues: vec![16, 16],
        wait: BarrierWait::Block,
        adaptive_spin: false,
        memory: Memory::default(),
    };
    script.check().unwrap();
    engine.arrive(Arc::new(script), false);
    near(times(&mut engine, 1)[0], 2.0, 0.05);
}

#[test]
fn spinning_wastes_cpu_time_that_blocking_leaves_to_others() {
    let slow = |wait| {
        let mut engine = engine(1, 2, 1);
        let steps = vec![
            Op::Serial { ns: 1e6 },
            Op::Barrier(0),
            Op::Loop { to: 0, times: 500 },
        ];
        let mut script = (*program(2, steps)).clone();
        script.wait = wait;
        engine.arrive(Arc::new(script), false);
        engine.arrive(program(2, vec![work(10.0)]), false);
        engine.run(SECOND * 1000).unwrap();
        let SimEvent::Repeated {
            program: 0,
            seconds,
        } = engine.take_sim_events()[0]
        else {
            panic!("the other program cannot end first");
        };
        seconds
    };
    let (blocks, spins) = (slow(BarrierWait::Block), slow(BarrierWait::Spin));
    assert!(spins > 1.2 * blocks, "{spins} against {blocks}");
}

#[test]
fn overloaded_memory_node_is_limited_to_its_bandwidth() {
    let mut engine = engine(1, 8, 1);
    let mut script = (*program(8, vec![work(1.0)])).clone();
    script.memory = Memory {
        stall: 0.9,
        gbps: 4.0,
        ..Memory::default()
    };
    engine.arrive(Arc::new(script), false);
    // Eight threads have a demand of 32 GB/s on a node with 16 GB/s.
    near(times(&mut engine, 1)[0], 2.0, 0.05);
}

#[test]
fn programs_that_overflow_the_cache_slow_one_another_down() {
    let script = |bytes| {
        let mut script = (*program(2, vec![work(1.0)])).clone();
        script.memory = Memory {
            stall: 0.5,
            sensitivity: 2.0,
            shared_bytes: bytes,
            ..Memory::default()
        };
        Arc::new(script)
    };
    let together = |bytes| {
        let mut engine = engine(1, 4, 1);
        engine.arrive(script(bytes), false);
        engine.arrive(script(bytes), false);
        times(&mut engine, 2)[0]
    };
    near(together(2e6), 1.0, 0.01);
    // The cache holds half of the working sets. The expected time is 0.5 + 0.5 * (1 + 2 * 0.5) =
    // 1.5.
    near(together(6e6), 1.5, 0.06);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let mut engine = engine(2, 3, 2);
        for threads in [3, 8, 12] {
            let steps = vec![
                Op::Work {
                    ns: 3e6,
                    spread: 0.9,
                },
                Op::Barrier(0),
                Op::Loop { to: 0, times: 50 },
            ];
            engine.arrive(program(threads, steps), false);
        }
        (times(&mut engine, 3), engine.events())
    };
    assert_eq!(run(), run());
}
