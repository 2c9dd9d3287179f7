// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paper 3a simulated: the bars at the paper's point, and what must hold whatever
//! the figures are.

#![allow(clippy::unwrap_used)]

use usher_sim::coloring::engine::{Engine, queue};
use usher_sim::coloring::kernel::{Field, SLEEPING};
use usher_sim::coloring::machine::{Colors, Load, Machine};
use usher_sim::coloring::model::Model;
use usher_sim::coloring::workload::{Chat, Web, Workload};
use usher_sim::coloring::{Outcome, Setting, SimulationError, gain_percent, simulate};

/// Shorter than the bench's, but beyond what the chat says before it has to hear.
fn at(load: Load, cpus: usize, colors: Colors) -> Outcome {
    let (warm, measured) = match load {
        Load::Web => (1_280, 1_280),
        Load::Chat => (48_000, 12_000),
    };
    let setting = Setting {
        load,
        cpus,
        colors,
        warm,
        measured,
        seed: 1,
    };
    simulate(&Machine::PAPER, &setting).unwrap()
}

#[test]
fn at_the_papers_point_the_web_gains_and_the_walk_stops_missing() {
    let (plain, colored) = (
        at(Load::Web, 8, Colors::Plain),
        at(Load::Web, 8, Colors::OURS),
    );
    assert!(plain.walk_miss_ratio > 0.9, "{plain:?}");
    assert!(colored.walk_miss_ratio < 0.1, "{colored:?}");
    let gain = gain_percent(&plain, &colored);
    assert!(gain >= 15.0, "{gain}");
    assert!(colored.contention < plain.contention && colored.hold_us < plain.hold_us);
}

#[test]
fn at_the_papers_point_the_chat_gains_more() {
    let (plain, colored) = (
        at(Load::Chat, 8, Colors::Plain),
        at(Load::Chat, 8, Colors::OURS),
    );
    assert!(plain.walk_miss_ratio > 0.9, "{plain:?}");
    assert!(colored.walk_miss_ratio < 0.1, "{colored:?}");
    // One seed and a short run: the bar is for the bench's median over seeds.
    let gain = gain_percent(&plain, &colored);
    assert!(gain >= 35.0, "{gain}");
    assert!(colored.contention < plain.contention && colored.hold_us < plain.hold_us);
}

#[test]
fn the_gain_grows_with_the_cpus() {
    let gain = |cpus| {
        let of = |colors| at(Load::Web, cpus, colors);
        gain_percent(&of(Colors::Plain), &of(Colors::OURS))
    };
    let gains = [1, 4, 8].map(gain);
    assert!(gains[0] > 0.0 && gains.is_sorted(), "{gains:?}");
}

#[test]
fn times_add_up_to_the_cpus() {
    for load in Load::ALL {
        let o = at(load, 3, Colors::OURS);
        let all = o.spinning + o.holding + o.working;
        // The rest is changes of tasks, and idle. What is counted at its beginning
        // may end after the end.
        assert!((0.5..1.01).contains(&all), "{o:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_and_another_another() {
    let of = |seed| {
        let setting = Setting {
            load: Load::Web,
            cpus: 2,
            colors: Colors::OURS,
            warm: 100,
            measured: 300,
            seed,
        };
        simulate(&Machine::PAPER, &setting).unwrap()
    };
    assert_eq!(of(5), of(5));
    assert_ne!(of(5).throughput, of(6).throughput);
}

/// Who is on the queue: whoever does not sleep, each once, and all who run.
fn check(engine: &Engine<'_>, tasks: usize) {
    let model = engine.model();
    let mut on_queue = queue(model);
    on_queue.sort_unstable();
    assert!(on_queue.is_sorted_by(|a, b| a < b), "nobody twice");
    let running = engine.running();
    for task in 0..tasks {
        let number = Model::number(task);
        let runs = running.contains(&Some(number));
        let queued = on_queue.binary_search(&number).is_ok();
        let sleeps = model.peek(number, Field::State) == SLEEPING;
        assert!(queued || (sleeps && !runs), "{task} is lost");
        // Who is about to sleep is still on the queue, and runs.
        assert!(!(queued && sleeps) || runs, "{task} sleeps on the queue");
        assert_eq!(model.peek(number, Field::HasCpu) == 1, runs, "{task}");
    }
}

#[test]
fn no_task_and_no_message_is_lost() {
    let machine = Machine::PAPER;
    for cpus in [1, 3, 8] {
        for seed in 0..3 {
            let chat = Chat::new(3, 5, 2);
            let model = Model::new(&machine, cpus, chat.tasks(), Colors::OURS, seed).unwrap();
            let mut engine = Engine::new(machine, &chat, model, cpus);
            for units in [0, 1, 10, 500, 2_000] {
                let counts = engine.run_until_completed(units);
                assert!(counts.completed >= units, "it goes on for ever");
                assert_eq!(chat.sent() * 5, chat.completed() + chat.on_their_way());
                check(&engine, chat.tasks());
            }
        }
    }
}

#[test]
fn idle_cpus_wait_for_what_comes_from_outside() {
    let machine = Machine::PAPER;
    // Two processes on four CPUs, and clients that take longer than they.
    let web = Web::new(2, 1, 5_000_000);
    let model = Model::new(&machine, 4, 2, Colors::Plain, 1).unwrap();
    let mut engine = Engine::new(machine, &web, model, 4);
    let counts = engine.run_until_completed(10);
    assert_eq!(counts.completed, 10);
    // Ten halves one after the other for each of the two.
    let seconds = machine.ns(counts.cycles) as f64 / 1e9;
    assert!((0.045..0.06).contains(&seconds), "{seconds}");
    check(&engine, 2);
}

#[test]
fn what_cannot_be_is_said() {
    let setting = |cpus| Setting {
        load: Load::Web,
        cpus,
        colors: Colors::Ours(1000),
        warm: 1,
        measured: 1,
        seed: 1,
    };
    let none = simulate(&Machine::PAPER, &setting(0));
    assert_eq!(none, Err(SimulationError::NoCpu));
    let colors = simulate(&Machine::PAPER, &setting(1)).unwrap_err();
    assert!(colors.to_string().contains("1000 colours"), "{colors}");
    let small = Machine {
        memory_bytes: 1 << 20,
        ..Machine::PAPER
    };
    let plain = Setting {
        colors: Colors::Plain,
        ..setting(1)
    };
    let memory = simulate(&small, &plain).unwrap_err();
    assert!(
        memory.to_string().contains("the memory has 128"),
        "{memory}"
    );
}
