// SPDX-License-Identifier: MIT OR Apache-2.0
//! Assigns CPUs to the programs to be seated, in two steps.
//!
//! 1. Amounts: the numbers of units (whole domains, or cores) with the least sum of weighted NTTs
//!    (`allot`), or a good allocation with a bound on its distance from the optimum (`relax`) if
//!    the exact search would take too long.
//! 2. Places: the units of each program, level by level (package, NUMA node, domain), for the best
//!    locality among the optimal allocations (`place`). At most 200,000 / (number of all options)
//!    optimal allocations are considered, limited to 16..=1,000. No further allocation is
//!    considered after 40,000 pairs of a candidate and a unit.
//!
//! The search for places tries at most 4,000 groups per plan at the first level, and 4,000 groups at
//! the second level. It ends, too, when the plan's budget of steps (`budget`) is used up. The best
//! placement found before is then used.
//!
//! The exact search is repeated with coarser prices, at most 8 times in all, if a sum of prices
//! reaches its cap. An assignment fails if there are more candidates than units, or if the
//! candidates' bindings and spinning threads leave too few suitable units.

use std::collections::BTreeMap;

use usher_model::{CpuSet, Topology};

use super::allot::{self, RecurrenceTable};
use super::budget::StepBudget;
use super::candidate::{SeatCandidate, finite};
use super::interference::Interference;
use super::options::{self, MixedRadix, OptionTable, cost_of, option_table, quantise};
use super::place::{Demand, Objective, PlacementScore, UnitGroup, UnitPlacement, place};
use super::relax;
use super::search::{self, Search};
use super::units::{Allotment, Unit, UnitClass, UnitPool};

/// Maximum number of groups that the placement search tries per plan, at each level.
const GROUPS_TRIED_MAX: u32 = 4_000;

/// Number of (candidate, unit) pairs, summed over the allocations tried, after which no further
/// optimal allocation is considered. The first allocation is always considered.
const PACKING_MAX: usize = 40_000;

/// Largest number of optimal allocations that the placement considers.
const OPTIMA_MAX: usize = 1_000;

/// CPUs of each candidate, in the order of the candidates.
#[derive(Debug)]
pub(super) struct SeatAssignment {
    pub seats: Vec<CpuSet>,
    /// Capacity of each seat.
    pub capacities: Vec<f64>,
    /// Upper bound of the sum of weighted NTTs minus the least possible sum.
    pub gap: f64,
    /// Whether the search for amounts ended by its budget of steps.
    pub ended_by_budget: bool,
}

/// Assigns seats of whole domains; `None` if that is impossible.
pub(super) fn whole_domains(
    machine: &Topology,
    candidates: &[SeatCandidate<'_>],
    budget: &StepBudget,
) -> Option<SeatAssignment> {
    let pool = UnitPool::of_domains(machine, candidates);
    let interference = Interference::at_controller(candidates);
    let levels: [Level; 2] = [
        |unit| unit.package,
        |unit| unit.node.map_or(0, |node| node + 1),
    ];
    assign(
        candidates,
        &pool,
        &levels,
        &interference,
        Objective::Separate,
        budget,
    )
}

/// Assigns seats of whole cores; `None` if that is impossible.
pub(super) fn split_domains(
    machine: &Topology,
    candidates: &[SeatCandidate<'_>],
    budget: &StepBudget,
) -> Option<SeatAssignment> {
    let pool = UnitPool::of_cores(machine, candidates);
    let interference = Interference::in_domain(machine, candidates);
    assign(
        candidates,
        &pool,
        &[|unit| unit.domain],
        &interference,
        Objective::LeastInterference,
        budget,
    )
}

/// Maps a unit to its group (package, NUMA node or domain) at one level.
type Level = fn(&Unit) -> usize;

fn assign(
    candidates: &[SeatCandidate<'_>],
    pool: &UnitPool,
    levels: &[Level],
    interference: &Interference,
    objective: Objective,
    budget: &StepBudget,
) -> Option<SeatAssignment> {
    if candidates.len() > pool.units.len() {
        return None;
    }
    let found = allotments(candidates, &pool.classes, &pool.supply(), budget)?;
    let allotments = &found.all;
    let all: Vec<usize> = (0..pool.units.len()).collect();
    let mut best: Option<(PlacementScore, u32, &Allotment, PlacementJob)> = None;
    let mut steps = GROUPS_TRIED_MAX;
    let mut packed = 0;
    for (tried, allotment) in allotments.iter().enumerate() {
        packed += candidates.len() * pool.units.len();
        if tried > 0 && (packed > PACKING_MAX || budget.left() == 0) {
            break;
        }
        let mut share = steps / (allotments.len() - tried) as u32;
        steps -= share;
        let placement_job = PlacementJob::new(
            pool,
            &all,
            levels[0],
            demands(allotment),
            interference,
            objective,
            (&mut share, budget),
        );
        steps += share;
        let units = allotment.iter().flatten().sum();
        let key = (placement_job.placed.score, units);
        if best
            .as_ref()
            .is_none_or(|(score, units, ..)| key < (*score, *units))
        {
            best = Some((key.0, key.1, allotment, placement_job));
        }
    }
    let (_, _, allotment, placement_job) = best?;
    let mut seats = vec![CpuSet::new(); candidates.len()];
    let goals = (interference, objective);
    placement_job.seat(pool, &levels[1..], goals, budget, &mut seats);
    let capacity = |take: &Vec<u32>| {
        let of_class = take.iter().zip(&pool.classes);
        of_class
            .map(|(&count, class)| f64::from(count) * class.capacity)
            .sum()
    };
    Some(SeatAssignment {
        capacities: allotment.iter().map(capacity).collect(),
        seats,
        gap: found.gap,
        ended_by_budget: found.ended_by_budget,
    })
}

/// Maximum number of options of all candidates together, among which the exact search selects.
const OPTIONS_MAX: u128 = 60_000;

/// The same maximum for units of one class, whose options take less time.
const OPTIONS_OF_ONE_CLASS_MAX: u128 = 200_000;

/// Allotments with the least sum of costs, or a good allotment with its distance from that sum.
struct Allotments {
    all: Vec<Allotment>,
    /// Upper bound of the sum of costs minus the least possible sum.
    gap: f64,
    /// Whether the search ended by its budget of steps.
    ended_by_budget: bool,
}

impl Allotments {
    /// A good allotment from `relax`.
    fn approximate(
        candidates: &[SeatCandidate<'_>],
        classes: &[UnitClass],
        budget: &StepBudget,
    ) -> Option<Self> {
        let (allotment, gap) = relax::allot(candidates, classes, budget)?;
        Some(Self {
            all: vec![allotment],
            gap,
            ended_by_budget: gap > 0.0,
        })
    }
}

/// Returns the optimal allotments and the gap 0. If the exact search would take too long, returns a
/// good allotment and its gap.
fn allotments(
    candidates: &[SeatCandidate<'_>],
    classes: &[UnitClass],
    supply: &[u32],
    budget: &StepBudget,
) -> Option<Allotments> {
    let units_max = supply.iter().sum::<u32>() - (candidates.len() as u32 - 1);
    let vectors = supply
        .iter()
        .map(|&units| u128::from(units.min(units_max)) + 1)
        .fold(candidates.len() as u128, u128::saturating_mul);
    let options_max = match supply {
        [_] => OPTIONS_OF_ONE_CLASS_MAX,
        _ => OPTIONS_MAX,
    };
    if vectors > options_max || MixedRadix::states(supply).is_none() {
        return Allotments::approximate(candidates, classes, budget);
    }
    let table_steps = options::table_steps(vectors as u64, supply.len());
    if table_steps > budget.left() / 2 {
        return Allotments::approximate(candidates, classes, budget);
    }
    budget.spend(table_steps);
    let mut tables: Vec<OptionTable> = (candidates.iter().enumerate())
        .map(|(index, candidate)| option_table(candidate, index, classes, units_max))
        .collect();
    let mut good = relax::good_allotment(candidates, classes, budget);
    // The distance from the lower bound of the search, in units of cost.
    let mut above = f64::INFINITY;
    // The unit of the prices grows until the least sum is below the cap.
    for coarser in [0, 20, 40, 80, 160, 320, 640, 1280] {
        let (cap, unit) = quantise(&mut tables, coarser);
        let price = |(index, take): (usize, &Vec<u32>)| {
            let cost = cost_of(&candidates[index], classes, take).unwrap_or(f64::MAX);
            ((cost / unit).round() as u64).min(cap)
        };
        let upper = good.as_ref().map_or(u64::MAX / 4, |allotment| {
            allotment.iter().enumerate().map(price).sum()
        });
        let work = Some(allot::work(candidates.len(), supply));
        let work = work.filter(|&work| work <= allot::WORK_MAX.min(budget.left()));
        let mut search = searched(&tables, supply, upper, work, budget);
        let better = search.better.take();
        let least = better.as_ref().map_or(upper, |(sum, _)| *sum);
        if coarser == 0 && least < cap {
            above = (least as f64 - search.bound + candidates.len() as f64).max(0.0) * unit;
            if let Some((_, path)) = better {
                good = Some(taken(&tables, path));
            }
        }
        let Some(solved) = solved(&tables, supply, search, work, budget) else {
            break;
        };
        let least = solved.least()?;
        if least < cap || coarser == 1280 {
            return Some(Allotments {
                all: optima(&tables, &solved, budget),
                gap: 0.0,
                ended_by_budget: false,
            });
        }
    }
    let allotment = good?;
    let gap = relax::gap(candidates, classes, &allotment, budget).min(finite(above));
    Some(Allotments {
        all: vec![allotment],
        gap,
        ended_by_budget: gap > 0.0,
    })
}

/// Searches with bounds. If all states may be evaluated afterwards, the steps of that `work` remain
/// available.
fn searched(
    tables: &[OptionTable],
    supply: &[u32],
    upper: u64,
    work: Option<u64>,
    budget: &StepBudget,
) -> Search {
    let tried_max = match work {
        Some(_) => search::TRIED_BEFORE_ALL_MAX,
        None => search::TRIED_MAX,
    };
    let reserved = budget.reserve(work.unwrap_or(0));
    let radix = MixedRadix::new(supply);
    let search = search::search(tables, supply, &radix, upper, tried_max, budget);
    budget.release(reserved);
    search
}

/// The solved recurrence; `None` if that would take too long. `work` is the number of steps for all
/// states, if they may be evaluated.
fn solved<'a>(
    tables: &'a [OptionTable],
    supply: &[u32],
    search: Search,
    work: Option<u64>,
    budget: &StepBudget,
) -> Option<RecurrenceTable<'a>> {
    if search.layers.is_some() {
        return RecurrenceTable::searched(tables, supply, search);
    }
    let evaluates = work.is_some_and(|work| budget.charge(work));
    evaluates.then(|| RecurrenceTable::of_options(tables, supply, search.options))
}

/// Optimal allotments, as many as the placement considers.
fn optima(
    tables: &[OptionTable],
    solved: &RecurrenceTable<'_>,
    budget: &StepBudget,
) -> Vec<Allotment> {
    let choices: usize = tables.iter().map(Vec::len).sum();
    let limit = (200_000 / choices.max(1)).clamp(16, OPTIMA_MAX);
    // Half of the steps that are left remain for the placement.
    let reserved = budget.reserve(budget.left() / 2);
    let paths = solved.optima(limit, budget).into_iter();
    budget.release(reserved);
    paths.map(|path| taken(tables, path)).collect()
}

/// The units of the options of a path.
fn taken(tables: &[OptionTable], path: Vec<usize>) -> Allotment {
    let options = tables.iter().zip(path);
    options.map(|(table, at)| table[at].take.clone()).collect()
}

fn demands(allotment: &Allotment) -> Vec<Demand> {
    let of_candidate = |(candidate, take): (usize, &Vec<u32>)| {
        let demand = move |(class, &count)| Demand {
            candidate,
            class,
            count,
        };
        take.iter().enumerate().map(demand).collect::<Vec<_>>()
    };
    let all = allotment.iter().enumerate().flat_map(of_candidate);
    all.filter(|demand| demand.count > 0).collect()
}

/// The demands at one level, the groups of units at that level, and the placement of the demands on
/// the groups.
struct PlacementJob {
    demands: Vec<Demand>,
    groups: Vec<Vec<usize>>,
    placed: UnitPlacement,
}

impl PlacementJob {
    fn new(
        pool: &UnitPool,
        units: &[usize],
        level: Level,
        demands: Vec<Demand>,
        interference: &Interference,
        objective: Objective,
        (steps, budget): (&mut u32, &StepBudget),
    ) -> Self {
        let mut by_key: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &unit in units {
            by_key
                .entry(level(&pool.units[unit]))
                .or_default()
                .push(unit);
        }
        let groups: Vec<Vec<usize>> = by_key.into_values().collect();
        let unit_groups: Vec<UnitGroup> = groups
            .iter()
            .map(|units| unit_group(pool, units, objective))
            .collect();
        let placed = place(
            &unit_groups,
            &demands,
            interference,
            objective,
            steps,
            budget,
        );
        Self {
            demands,
            groups,
            placed,
        }
    }

    /// Gives the placed units to the candidates. If there are lower levels, the demands in each
    /// group are first placed at these levels.
    fn seat(
        &self,
        pool: &UnitPool,
        below: &[Level],
        (interference, objective): (&Interference, Objective),
        budget: &StepBudget,
        seats: &mut [CpuSet],
    ) {
        for (units, demands) in self.groups.iter().zip(self.demands_of_groups()) {
            if demands.is_empty() {
                continue;
            }
            match below {
                [level, rest @ ..] => {
                    let mut steps = GROUPS_TRIED_MAX / self.groups.len() as u32;
                    Self::new(
                        pool,
                        units,
                        *level,
                        demands,
                        interference,
                        objective,
                        (&mut steps, budget),
                    )
                    .seat(pool, rest, (interference, objective), budget, seats);
                }
                [] => distribute_units(pool, units, &demands, seats),
            }
        }
    }

    /// The parts of the demands that are placed in each group.
    fn demands_of_groups(&self) -> Vec<Vec<Demand>> {
        let mut of_groups: Vec<Vec<Demand>> = vec![Vec::new(); self.groups.len()];
        for (demand, amounts) in self.demands.iter().zip(&self.placed.amounts) {
            for &(group, count) in amounts {
                let is_same =
                    |d: &&mut Demand| (d.candidate, d.class) == (demand.candidate, demand.class);
                match of_groups[group].last_mut().filter(is_same) {
                    Some(part) => part.count += count,
                    None => of_groups[group].push(Demand { count, ..*demand }),
                }
            }
        }
        of_groups
    }
}

fn unit_group(pool: &UnitPool, units: &[usize], objective: Objective) -> UnitGroup {
    let mut slots = vec![0; pool.classes.len()];
    for &unit in units {
        slots[pool.units[unit].class] += 1;
    }
    let parent = match objective {
        Objective::Separate => 0,
        Objective::LeastInterference => units.first().map_or(0, |&unit| pool.units[unit].package),
    };
    UnitGroup { slots, parent }
}

/// Gives the lowest units of each class to the first candidate, the next units to the second
/// candidate, and so on.
fn distribute_units(pool: &UnitPool, units: &[usize], demands: &[Demand], seats: &mut [CpuSet]) {
    let mut of_class: Vec<Vec<usize>> = vec![Vec::new(); pool.classes.len()];
    for &unit in units {
        of_class[pool.units[unit].class].push(unit);
    }
    let mut free: Vec<_> = of_class.iter().map(|units| units.iter()).collect();
    for demand in demands {
        for &unit in free[demand.class].by_ref().take(demand.count as usize) {
            seats[demand.candidate].extend(pool.units[unit].cpus.iter());
        }
    }
}
