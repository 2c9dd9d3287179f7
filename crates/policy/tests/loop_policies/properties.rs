// SPDX-License-Identifier: MIT OR Apache-2.0
//! Property test: under random sequences of arrivals, departures and other events, seats stay
//! disjoint, every program has CPUs, and a second policy instance makes the same decisions.

use proptest::prelude::*;
use usher_model::*;
use usher_policy::by_name;

use crate::MS;
use crate::shapes::{medium, perfect, poor};
use crate::world::{World, machine, profiled, truth};

/// An event between two samples.
#[derive(Debug, Clone)]
enum RandomEvent {
    Arrive { kind: u8, profiled: bool },
    Depart(u8),
    Demand(u8, u8),
    Usable(u16),
    Pass(u16),
}

fn random_event() -> impl Strategy<Value = RandomEvent> {
    prop_oneof![
        (0..3u8, any::<bool>()).prop_map(|(kind, profiled)| RandomEvent::Arrive { kind, profiled }),
        (0..8u8).prop_map(RandomEvent::Depart),
        (0..8u8, 0..16u8).prop_map(|(id, demand)| RandomEvent::Demand(id, demand)),
        (1..u16::MAX).prop_map(RandomEvent::Usable),
        (1..400u16).prop_map(RandomEvent::Pass),
        (1..400u16).prop_map(RandomEvent::Pass),
    ]
}

fn apply_event(
    world: &mut World,
    next_id: &mut u64,
    random_event: &RandomEvent,
    topology: &Topology,
) -> u64 {
    match *random_event {
        RandomEvent::Arrive {
            kind,
            profiled: has_profile,
        } if *next_id < 8 => {
            *next_id += 1;
            let speed = [perfect, poor, medium][usize::from(kind)];
            let newcomer = truth(*next_id, speed, 16.0);
            world.arrive(if has_profile {
                profiled(newcomer, 16)
            } else {
                newcomer
            });
        }
        RandomEvent::Arrive { .. } => {}
        RandomEvent::Depart(id) => world.depart(u64::from(id)),
        RandomEvent::Demand(id, demand) => world.set_demand(u64::from(id), f64::from(demand)),
        RandomEvent::Usable(bits) => {
            let usable: CpuSet = (0..16).filter(|cpu| bits & (1 << cpu) != 0).collect();
            world.usable = usable.and(&topology.all_cpus());
        }
        RandomEvent::Pass(ms) => return u64::from(ms) * MS,
    }
    0
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// The owners' seats are disjoint, loans come out of seats or free CPUs, and every program has
    /// CPUs. `usher` freezes no program, because no program busy-waits. A second policy makes the
    /// same decisions.
    #[test]
    fn seats_stay_disjoint_under_random_events(events in prop::collection::vec(random_event(), 1..40), name in prop::sample::select(vec!["equal", "casas", "usher"])) {
        let topology = machine(4, 4);
        let mut runs = Vec::new();
        for _ in 0..2 {
            let mut policy = by_name(name, &topology).unwrap();
            let mut world = World::new(&topology);
            let mut next_id = 0;
            for h in &events {
                let pass_ns = apply_event(&mut world, &mut next_id, h, &topology).max(1);
                let until_ns = world.at_ns + pass_ns;
                while world.at_ns < until_ns {
                    world.step(&mut *policy, until_ns - world.at_ns);
                    let (_, decision) = world.log.last().unwrap();
                    if let Some(plan) = &decision.plan {
                        check_plan(plan, &world.usable)?;
                    }
                    if name == "usher" {
                        let freezes = decision.actions.iter().any(|a| matches!(a, Action::Freeze { .. }));
                        prop_assert!(!freezes);
                    }
                }
            }
            runs.push(world.log);
        }
        prop_assert_eq!(&runs[0], &runs[1]);
    }
}

fn check_plan(plan: &Plan, usable: &CpuSet) -> Result<(), TestCaseError> {
    let mut taken = CpuSet::new();
    for seat in plan
        .seats
        .iter()
        .filter(|seat| seat.mode == SeatMode::Seated)
    {
        prop_assert!(!seat.cpus.is_empty());
        prop_assert!(
            seat.cpus.is_subset(usable),
            "{:?} beyond {:?}",
            seat.cpus,
            usable
        );
        prop_assert!(
            !seat.cpus.intersects(&taken),
            "two seats on {:?}",
            seat.cpus.and(&taken)
        );
        taken = taken.or(&seat.cpus);
    }
    for loan in &plan.loans {
        let from = match loan.owner {
            Some(owner) => plan
                .seats
                .iter()
                .find(|s| s.program == owner)
                .unwrap()
                .cpus
                .clone(),
            None => usable.minus(&taken),
        };
        prop_assert!(loan.owner != Some(loan.borrower));
        prop_assert!(loan.cpus.is_subset(&from), "{loan:?} is not its owner's");
    }
    Ok(())
}
