// SPDX-License-Identifier: MIT OR Apache-2.0
//! Assigns CPUs to candidates: first the amounts (`allot`, or `relax` where that would take too
//! long), then the places (`place`), level by level.

use std::collections::BTreeMap;

use usher_model::{CpuSet, Topology};

use super::allot::{self, Table};
use super::guest::Guest;
use super::hurt::Hurt;
use super::menu::{Menu, menu, quantise};
use super::place::{Aim, Group, Item, Placed, Score, place};
use super::relax;
use super::units::{Class, Pool, Unit};

/// Steps of placement search per plan, at the first level and below.
const STEPS: u32 = 4_000;

/// Number of (demand, unit) pairs after which packing considers no further optimal allocations.
const PACKING_MAX: usize = 40_000;

/// Largest number of optimal allocations that the placement considers.
const OPTIMA_MAX: usize = 1_000;

/// CPUs of each candidate, in the order of the candidates.
#[derive(Debug)]
pub(super) struct Assigned {
    pub seats: Vec<CpuSet>,
    /// Capacities of these CPUs.
    pub capacities: Vec<f64>,
    /// Upper bound of the sum of weighted NTTs above the least possible sum.
    pub gap: f64,
}

/// Seats of whole domains; `None` if impossible.
pub(super) fn whole_domains(machine: &Topology, guests: &[Guest<'_>]) -> Option<Assigned> {
    let pool = Pool::of_domains(machine, guests);
    let hurt = Hurt::at_controller(guests);
    let levels: [Level; 2] = [
        |unit| unit.package,
        |unit| unit.node.map_or(0, |node| node + 1),
    ];
    assign(guests, &pool, &levels, &hurt, Aim::Apart)
}

/// Seats of whole cores; `None` if impossible.
pub(super) fn split_domains(machine: &Topology, guests: &[Guest<'_>]) -> Option<Assigned> {
    let pool = Pool::of_cores(machine, guests);
    let hurt = Hurt::in_domain(machine, guests);
    assign(guests, &pool, &[|unit| unit.domain], &hurt, Aim::Gentle)
}

/// Maps a unit to its group at one level.
type Level = fn(&Unit) -> usize;

/// Number of units of each class for each candidate.
pub(super) type Allotment = Vec<Vec<u32>>;

fn assign(
    guests: &[Guest<'_>],
    pool: &Pool,
    levels: &[Level],
    hurt: &Hurt,
    aim: Aim,
) -> Option<Assigned> {
    if guests.len() > pool.units.len() {
        return None;
    }
    let (allotments, gap) = allotments(guests, &pool.classes, &pool.supply())?;
    let all: Vec<usize> = (0..pool.units.len()).collect();
    let mut best: Option<(Score, u32, &Allotment, Job)> = None;
    let mut steps = STEPS;
    let mut packed = 0;
    for (tried, allotment) in allotments.iter().enumerate() {
        packed += guests.len() * pool.units.len();
        if tried > 0 && packed > PACKING_MAX {
            break;
        }
        let mut share = steps / (allotments.len() - tried) as u32;
        steps -= share;
        let job = Job::new(
            pool,
            &all,
            levels[0],
            items(allotment),
            hurt,
            aim,
            &mut share,
        );
        steps += share;
        let units = allotment.iter().flatten().sum();
        let key = (job.placed.score, units);
        if best
            .as_ref()
            .is_none_or(|(score, units, ..)| key < (*score, *units))
        {
            best = Some((key.0, key.1, allotment, job));
        }
    }
    let (_, _, allotment, job) = best?;
    let mut seats = vec![CpuSet::new(); guests.len()];
    job.seat(pool, &levels[1..], hurt, aim, &mut seats);
    let capacity = |take: &Vec<u32>| {
        let of_class = take.iter().zip(&pool.classes);
        of_class
            .map(|(&count, class)| f64::from(count) * class.capacity)
            .sum()
    };
    Some(Assigned {
        capacities: allotment.iter().map(capacity).collect(),
        seats,
        gap,
    })
}

/// Optimal allotments, or a good one with its gap.
fn allotments(
    guests: &[Guest<'_>],
    classes: &[Class],
    supply: &[u32],
) -> Option<(Vec<Allotment>, f64)> {
    if allot::work(guests.len(), supply) > allot::work_max(supply) {
        let (allotment, gap) = relax::allot(guests, classes)?;
        return Some((vec![allotment], gap));
    }
    let units_max = supply.iter().sum::<u32>() - (guests.len() as u32 - 1);
    let mut menus: Vec<Menu> = (guests.iter().enumerate())
        .map(|(who, guest)| menu(guest, who, classes, units_max))
        .collect();
    // The unit of the prices grows until the least sum is below the cap.
    for coarser in [0, 20, 40, 80, 160, 320, 640, 1280] {
        let cap = quantise(&mut menus, coarser);
        let table = Table::new(&menus, supply);
        let least = table.least()?;
        if least < cap || coarser == 1280 {
            let choices: usize = menus.iter().map(Vec::len).sum();
            let limit = (200_000 / choices.max(1)).clamp(16, OPTIMA_MAX);
            let take = |(menu, at): (&Menu, usize)| menu[at].take.clone();
            let optima = table.optima(limit).into_iter();
            let allotments = optima.map(|path| menus.iter().zip(path).map(take).collect());
            return Some((allotments.collect(), 0.0));
        }
    }
    None
}

fn items(allotment: &Allotment) -> Vec<Item> {
    let of_guest = |(guest, take): (usize, &Vec<u32>)| {
        let item = move |(class, &count)| Item {
            guest,
            class,
            count,
        };
        take.iter().enumerate().map(item).collect::<Vec<_>>()
    };
    let all = allotment.iter().enumerate().flat_map(of_guest);
    all.filter(|item| item.count > 0).collect()
}

/// Demands placed on groups of units.
struct Job {
    items: Vec<Item>,
    groups: Vec<Vec<usize>>,
    placed: Placed,
}

impl Job {
    fn new(
        pool: &Pool,
        units: &[usize],
        level: Level,
        items: Vec<Item>,
        hurt: &Hurt,
        aim: Aim,
        steps: &mut u32,
    ) -> Self {
        let mut by_key: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &unit in units {
            by_key
                .entry(level(&pool.units[unit]))
                .or_default()
                .push(unit);
        }
        let groups: Vec<Vec<usize>> = by_key.into_values().collect();
        let rooms: Vec<Group> = groups.iter().map(|units| room(pool, units, aim)).collect();
        let placed = place(&rooms, &items, hurt, aim, steps);
        Self {
            items,
            groups,
            placed,
        }
    }

    /// Distributes the units, after placing them at the levels below.
    fn seat(&self, pool: &Pool, below: &[Level], hurt: &Hurt, aim: Aim, seats: &mut [CpuSet]) {
        for (group, units) in self.groups.iter().enumerate() {
            let amounts = self.items.iter().zip(&self.placed.amounts);
            let items: Vec<Item> = amounts
                .map(|(item, amounts)| Item {
                    count: amounts[group],
                    ..*item
                })
                .filter(|item| item.count > 0)
                .collect();
            if items.is_empty() {
                continue;
            }
            match below {
                [level, rest @ ..] => {
                    let mut steps = STEPS / self.groups.len() as u32;
                    Self::new(pool, units, *level, items, hurt, aim, &mut steps)
                        .seat(pool, rest, hurt, aim, seats);
                }
                [] => hand_out(pool, units, &items, seats),
            }
        }
    }
}

fn room(pool: &Pool, units: &[usize], aim: Aim) -> Group {
    let mut slots = vec![0; pool.classes.len()];
    for &unit in units {
        slots[pool.units[unit].class] += 1;
    }
    let parent = match aim {
        Aim::Apart => 0,
        Aim::Gentle => units.first().map_or(0, |&unit| pool.units[unit].package),
    };
    Group { slots, parent }
}

/// Gives the lowest units of each class to the first candidate, the next to the second, and so on.
fn hand_out(pool: &Pool, units: &[usize], items: &[Item], seats: &mut [CpuSet]) {
    let mut next = vec![0; pool.classes.len()];
    for item in items {
        let of_class = units.iter().filter(|&&u| pool.units[u].class == item.class);
        let given = of_class.skip(next[item.class]).take(item.count as usize);
        next[item.class] += item.count as usize;
        for &unit in given {
            seats[item.guest] = seats[item.guest].or(&pool.units[unit].cpus);
        }
    }
}
