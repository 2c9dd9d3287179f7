// SPDX-License-Identifier: MIT OR Apache-2.0
//! What leaving everything to the kernel is predicted to cost.
//!
//! The kernel's fair scheduler is work-conserving and shares CPU time evenly
//! between programs (each has its session's autogroup or its own cgroup), not
//! between threads. So:
//!
//! * A program alone on N cores keeps `used` CPUs busy: what was measured
//!   there, else all of them.
//! * CPUs are granted by *water-filling*: who uses less than an even share
//!   has all that it uses, the others share the rest evenly. Programs bound to
//!   a part of the machine first share that part.
//! * Progress is that on all cores, S(N), times the part granted,
//!   `r = granted / used`: fewer CPUs for the same threads mean that each
//!   thread waits, not that there are fewer of them.
//! * Threads that busy-wait for one another progress only while the partner
//!   runs too. When each of `k` runs a part `r` of the time, independently,
//!   all do for `r^k`; a thread waits for its neighbours rather than for
//!   everyone, so the exponent stops at 3. Checked against two programs
//!   halved to one core: LAMMPS with 2 ranks 5.5 times slower (model 4),
//!   sysbench's 4 yielding threads 4.6 times (model 8): the right order.
//!
//! A program's NTT is its alone-best over that. Alone it is 1, unless its curve
//! falls before N: the kernel gives it all cores, its best is on fewer.

use usher_model::{CpuSet, Topology};

use crate::seating::Request;

/// Partners, itself included, that a busy-waiting thread must meet at once.
const PARTNERS_MAX: u32 = 3;

/// NTT of each program, in the order of the requests, when all run together
/// with every CPU open to them (or those that they are bound to).
pub fn time_sharing(topology: &Topology, requests: &[Request]) -> Vec<f64> {
    let all = topology.all_cpus();
    let whole = topology.capacity_of(&all);
    let tenants: Vec<Tenant> = requests
        .iter()
        .map(|request| Tenant::new(topology, &all, whole, request))
        .collect();
    let granted = grants(&all, &tenants);
    let pairs = requests.iter().zip(tenants.iter().zip(granted));
    pairs
        .map(|(request, (tenant, granted))| tenant.ntt(request, granted))
        .collect()
}

/// A program as the kernel sees it.
struct Tenant {
    /// The CPUs that it is bound to, where it is.
    bound: Option<CpuSet>,
    /// Capacity of those, or of all.
    cores: f64,
    /// CPUs that it keeps busy when alone there.
    used: f64,
}

impl Tenant {
    /// `whole` is the capacity of `all`.
    fn new(topology: &Topology, all: &CpuSet, whole: f64, request: &Request) -> Self {
        let bound = request.bound_to.as_ref().map(|bound| bound.and(all));
        let bound = bound.filter(|bound| !bound.is_empty());
        let cores = bound.as_ref().map_or(whole, |b| topology.capacity_of(b));
        let most = bound.as_ref().unwrap_or(all).len() as f64;
        let measured = request.curve.busy_cpus(cores).filter(|&busy| busy > 0.0);
        let used = measured
            .unwrap_or(most)
            .max(f64::from(request.spinners))
            .min(most);
        Self { bound, cores, used }
    }

    fn ntt(&self, request: &Request, granted: f64) -> f64 {
        let part = match self.used > 0.0 {
            true => (granted / self.used).min(1.0),
            false => 1.0,
        };
        let together = request.spinners.clamp(1, PARTNERS_MAX);
        let progress = request.curve.rate(self.cores) * part.powi(together as i32);
        let ntt = request.curve.best_rate(self.cores) / progress;
        match ntt.is_nan() {
            true => f64::MAX,
            false => ntt.min(f64::MAX),
        }
    }
}

/// CPUs granted to each.
fn grants(all: &CpuSet, tenants: &[Tenant]) -> Vec<f64> {
    let mut wanted: Vec<f64> = tenants.iter().map(|tenant| tenant.used).collect();
    let mut parts: Vec<&CpuSet> = tenants.iter().filter_map(|t| t.bound.as_ref()).collect();
    parts.push(all);
    // Small parts first, so that what a part cannot give is not asked of the
    // whole.
    parts.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    parts.dedup();
    for part in parts {
        let inside: Vec<usize> = (0..tenants.len())
            .filter(|&i| tenants[i].bound.as_ref().unwrap_or(all).is_subset(part))
            .collect();
        let asked: Vec<f64> = inside.iter().map(|&i| wanted[i]).collect();
        for (&i, granted) in inside.iter().zip(water_fill(part.len() as f64, &asked)) {
            wanted[i] = granted;
        }
    }
    wanted
}

/// Shares `supply` so that nobody has more than it wants and nobody who has
/// less than it wants has less than another.
fn water_fill(supply: f64, wanted: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut granted = vec![0.0; wanted.len()];
    let mut left = supply;
    for (served, &i) in order.iter().enumerate() {
        let even = left / (wanted.len() - served) as f64;
        granted[i] = wanted[i].min(even);
        left -= granted[i];
    }
    granted
}
