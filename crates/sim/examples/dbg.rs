#![allow(missing_docs)]
use usher_sim::campaign::{Scheduler, cast};
use usher_sim::horizon::{Horizon, run};
use usher_sim::machine::Machine;
use usher_sim::parsec::programs;
use usher_sim::setup::{PAPER_1, Setup};
fn main() {
    let topology = usher_topology::load(usher_topology::Source::Synthetic(PAPER_1.into())).unwrap();
    let mut setup = Setup::new(programs().unwrap());
    let number =
        |name: &str, default: f64| std::env::var(name).map_or(default, |s| s.parse().unwrap());
    let k = &mut setup.kernel;
    k.slice_ns = number("SLICE", k.slice_ns as f64) as u64;
    k.busy_balance_ns = number("BUSY", k.busy_balance_ns as f64) as u64;
    k.sleeper_credit_ns = number("CREDIT", k.sleeper_credit_ns as f64) as u64;
    k.preempt_margin_ns = number("MARGIN", k.preempt_margin_ns as f64) as u64;
    let names: Vec<String> = std::env::args().skip(1).collect();
    setup.models.retain(|m| names.contains(&m.name));
    let machine = Machine::new(topology, setup.costs.clone());
    let players = cast(&setup.models, &machine, &setup.kernel, 24.0, 1);
    let entrants: Vec<_> = players.iter().map(|p| p.entrant.clone()).collect();
    let which = [
        Scheduler::Linux,
        Scheduler::Equal,
        Scheduler::Oracle,
        Scheduler::UsherCold,
    ][number("WHICH", 0.0) as usize];
    let policy = which.policy(&machine, &entrants);
    let horizon = Horizon {
        settle_s: number("SETTLE", 2.0),
        steady_s: number("STEADY", 20.0),
        repetitions: 3.0,
        scale: 8.0,
    };
    let f = run(&entrants, &machine, &setup.kernel, policy, &horizon, 1);
    for (e, ntt) in entrants.iter().zip(&f.ntt) {
        print!("{} {:.2}  ", e.name, ntt);
    }
    println!("{:.3}", f.antt());
}
