// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names in the samples of a guest: names of the parts to which samples belong, and names of the
//! figures in a sample. The program in the guest writes the names, and the code of each part reads
//! them. `result.json` contains them, too.

/// Part: seven programs beside a thread that mostly sleeps.
pub const ADDRESS_SPACES: &str = "spaces";
/// Part: Erlang virtual machines.
pub const ERLANG: &str = "erlang";
/// Part: the highest number of Erlang virtual machines beside the thread that mostly sleeps. The
/// load has a name of its own, so that the sleeper's switches are in no figure of [`ERLANG`].
pub const ERLANG_BESIDE_SLEEPER: &str = "erlang-sleeper";
/// Part: PostgreSQL, make and Java virtual machines at once.
pub const MIX: &str = "mix";
/// Part: two short and two long loops on two cores with SMT.
pub const CORES: &str = "cores";
/// Part: three programs with seats.
pub const SEATS: &str = "seats";
/// Part: loops beside a program that starts short programs without end.
pub const FORK_STORM: &str = "fork-storm";
/// Part: instructions of a context switch on one CPU, where two partners switch.
pub const OVERHEAD: &str = "overhead";
/// Part: instructions of a context switch on 8 CPUs with SMT, where each partner has a CPU that
/// becomes idle between turns.
pub const OVERHEAD_8: &str = "overhead-8";
/// Part: instructions of a context switch on 48 CPUs with SMT.
pub const OVERHEAD_48: &str = "overhead-48";

/// Part: random threads, and the idle CPU time beside waiting threads.
pub const CONSERVATION: &str = "conservation";
/// Part: wake-up latencies beside other work. `workloads` has the names of its samples.
pub const LATENCY: &str = "latency";
/// Part: workloads under all schedulers. `workloads` has the names of its samples.
pub const PEERS: &str = "peers";
/// Workload of [`PEERS`]: Erlang virtual machines with one scheduler per CPU.
pub const PEERS_ERLANG: &str = "peers-erlang";

/// Figure of the workloads of [`PEERS`]: the measure of the workload.
pub const MEASURE: &str = "measure";
/// Figures of [`LATENCY`] with cyclictest: mean and largest latency in milliseconds.
pub const MEAN_MS: &str = "mean_ms";
/// See [`MEAN_MS`].
pub const MAX_MS: &str = "max_ms";

/// Figure of [`CONSERVATION`]: demanded share of the CPUs, from 0.5 to 1.
pub const DEMAND: &str = "demand";
/// Figure of [`CONSERVATION`]: length of the run times the number of CPUs.
pub const CPU_MS: &str = "cpu_ms";
/// Figure of [`CONSERVATION`]: idle CPU time although threads waited.
pub const UNSERVED_MS: &str = "unserved_ms";
/// Figure of [`CONSERVATION`]: idle CPU time.
pub const IDLE_MS: &str = "idle_ms";
/// Figure of [`CONSERVATION`]: longest time without interruption in which a CPU was idle although a
/// thread waited.
pub const LONGEST_MS: &str = "longest_ms";
/// Figure of [`CONSERVATION`]: number of such times.
pub const EPISODES: &str = "episodes";

/// Figure of [`FORK_STORM`]: end time in seconds of the last loop in the run without the storm.
pub const ALONE_S: &str = "alone_s";
/// Figure of [`FORK_STORM`]: number of short programs started.
pub const FORKED: &str = "forked";

/// Figure of the overhead parts: time in nanoseconds of one write and one read without a partner.
pub const TURN_ALONE: &str = "alone";
/// Figure of the overhead parts: time in nanoseconds of a turn between two threads of a process.
pub const TURN_OF_THREADS: &str = "threads";
/// Figure of the overhead parts: time in nanoseconds of a turn between two processes.
pub const TURN_OF_PROCESSES: &str = "processes";

/// Figure of [`SEATS`]: number of CPUs in the owner's seat.
pub const OWN_CPUS: &str = "own_cpus";
/// Figure of [`SEATS`]: busy share of the time of all CPUs, from 0 to 1.
pub const USED: &str = "used";
/// Figure of [`SEATS`]: waiting time of the owner's threads / (their running time + waiting time),
/// from 0 to 1.
pub const LOST: &str = "lost";
/// Figure of [`SEATS`]: number of CPUs that the owner reclaimed.
pub const RETURNS: &str = "returns";
/// Figure of [`SEATS`]: time in milliseconds within which 99 % of the reclaimed CPUs ran the owner
/// again.
pub const BACK_MS: &str = "back_ms";
/// Figure of [`SEATS`]: share of the other programs' CPU time that they ran outside their own
/// seats, from 0 to 1.
pub const AS_GUESTS: &str = "as_guests";
