// SPDX-License-Identifier: MIT OR Apache-2.0
//! Predicts the NTTs (slow-downs against a run alone) of programs without seats, to which the
//! kernel alone distributes CPU time.
//!
//! The kernel's fair scheduler is work-conserving and shares CPU time evenly between programs (each
//! has its session's autogroup or its own cgroup), not between threads. The model of the kernel is
//! therefore:
//!
//! * A program alone on N cores keeps `used` CPUs busy: the measured number, or all CPUs if the
//!   number was not measured.
//! * CPUs are granted by *water-filling*: a program that uses less than an even share gets all that
//!   it uses; the other programs share the rest evenly. Programs bound to a part of the machine
//!   share that part first.
//! * The progress of a program is S(N), its progress on all cores, multiplied by `r = granted /
//!   used`: with fewer CPUs for the same threads, threads wait.
//! * Threads that busy-wait for one another progress only while their partners run, too. If each of
//!   `k` threads runs independently for the part `r` of the time, all threads run at once for the
//!   part `r^k`. The exponent is limited to 3, because a thread waits only for its neighbours.
//!   Measured on half of their cores, LAMMPS with 2 ranks is 5.5 times slower (model: 4 times), and
//!   sysbench with 4 yielding threads is 4.6 times slower (model: 8 times). The model has the right
//!   order of magnitude.
//!
//! The NTT of a program is its alone-best (its best rate alone) divided by its predicted progress.
//! A program that runs alone has an NTT of 1, or more if its curve falls before N cores, because
//! the kernel gives it all cores.
//!
//! Units: capacities and CPU counts are in cores; an NTT is at most the largest finite number. For
//! `n` programs with `b` different bindings, the time is of order b n log n.

use usher_model::{CpuSet, Topology};

use crate::seating::Request;

/// Largest number of threads, itself included, that must run at once for a busy-waiting thread to
/// progress.
const PARTNERS_MAX: u32 = 3;

/// Predicted NTT of each program, in the order of the requests. All programs run together, each on
/// all CPUs or on the CPUs that it is bound to.
pub fn time_sharing(topology: &Topology, requests: &[Request]) -> Vec<f64> {
    let all = topology.all_cpus();
    let whole = topology.capacity_of(&all);
    let demands: Vec<ProgramDemand> = requests
        .iter()
        .map(|request| ProgramDemand::new(topology, &all, whole, request))
        .collect();
    let granted = grants(&all, &demands);
    let pairs = requests.iter().zip(demands.iter().zip(granted));
    pairs
        .map(|(request, (demand, granted))| demand.ntt(request, granted))
        .collect()
}

/// A program in the model of the kernel's scheduler.
struct ProgramDemand {
    /// The CPUs that the program is bound to; `None`: not bound.
    bound: Option<CpuSet>,
    /// Capacity of the CPUs in `bound`, or of all CPUs.
    cores: f64,
    /// Number of CPUs that the program keeps busy when it runs alone on these CPUs.
    used: f64,
}

impl ProgramDemand {
    /// Creates the model of a program; `whole` is the capacity of `all`.
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

/// CPUs granted to each program.
fn grants(all: &CpuSet, demands: &[ProgramDemand]) -> Vec<f64> {
    let mut wanted: Vec<f64> = demands.iter().map(|demand| demand.used).collect();
    let mut parts: Vec<&CpuSet> = demands.iter().filter_map(|t| t.bound.as_ref()).collect();
    parts.push(all);
    // Small parts of the machine come first, because a program bound to a small part cannot use
    // CPUs outside of it.
    parts.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    parts.dedup();
    for part in parts {
        let inside: Vec<usize> = (0..demands.len())
            .filter(|&i| demands[i].bound.as_ref().unwrap_or(all).is_subset(part))
            .collect();
        let demanded: Vec<f64> = inside.iter().map(|&i| wanted[i]).collect();
        for (&i, granted) in inside.iter().zip(water_fill(part.len() as f64, &demanded)) {
            wanted[i] = granted;
        }
    }
    wanted
}

/// Divides `supply` among the entries of `wanted`. Each entry gets the amount that it wants, but at
/// most a common limit, which is as high as the supply permits.
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
