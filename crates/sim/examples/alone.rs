use std::sync::Arc;
use usher_sim::alone::alone_seconds;
use usher_sim::campaign::class_of;
use usher_sim::kernel::Kernel;
use usher_sim::machine::{Costs, Machine};
use usher_sim::mix::Entrant;
use usher_sim::parsec::programs;
fn main() {
    let topology = usher_topology::load(usher_topology::Source::Synthetic("package:4 die:2 numa:1 core:6 pu:1".into())).unwrap();
    let machine = Machine::new(topology.clone(), Costs::default());
    let kernel = Kernel::cfs();
    let six = "0-5".parse().unwrap();
    for model in programs().unwrap() {
        let here = model.traits.on(machine.costs());
        let frames = (30.0 * 1e3 / here.frame_ms).ceil() as u32;
        let name = &model.name;
        let e = Entrant::measure(name, Arc::new(here.script(name, 48, frames)), &machine, &kernel, 1).unwrap();
        let at = |n| alone_seconds(&machine, &kernel, Arc::new(here.script(name, n, frames)), Some(&six), 1).unwrap();
        print!("{name:14} {:?} crowded {:.3}  ", class_of(&e, &topology), at(48) / at(6));
        for p in e.alone.points() { print!(" {}:{:.2}", p.cores, p.rate * here.sequential_seconds(frames)); }
        println!();
    }
}
