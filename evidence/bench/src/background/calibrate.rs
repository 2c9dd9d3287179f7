// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the thresholds of contention for `usher bench calibrate` from measured time windows, as
//! in figure 1 of paper 2. The module `measure` runs the load generators and measures the windows.
//!
//! 1. Load generators run in foreground and background, each active for a given share of the time
//!    (its usage degree). In further windows, the background runs alone. Each window gives the
//!    background's share of the use of each resource, and the idle share of the CPUs.
//! 2. A pair of thresholds (CPU and disk, or CPU and network) is right about a window if it reports
//!    contention in a window with a foreground, or no contention in a window without a foreground.
//!    The windows without a foreground therefore count false stops of the background.
//! 3. The accuracy of a pair is the share of windows that the pair is right about. The pair with
//!    the highest accuracy is selected from a grid of 21 x 21 values from 0 to 1. Of equally
//!    accurate values, the middle value is selected. The cost is 441 tests per window.

use serde::{Deserialize, Serialize};

use super::watch::Resource;

/// Contention for the CPUs is reported only if the idle share of all CPUs is below this value
/// (paper 2, section 4.3).
pub const IDLE_BELOW: f64 = 0.25;
/// Number of steps from 0 to 1. One value more is tried for each threshold.
const STEPS: usize = 20;

/// The background's share of all use of each resource in one window, 0..=1; `None` if the
/// resource was not used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// The background's share of the used CPU time.
    pub cpu: Option<f64>,
    /// The background's share of the disk blocks that are read or written synchronously.
    pub disk: Option<f64>,
    /// The background's share of the calls of `send`.
    pub net: Option<f64>,
    /// Idle share of the time of all CPUs.
    pub idle: f64,
}

/// A measured window of time, and the load generators that ran during the window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Resource that the generators used.
    pub resource: Resource,
    /// Share of the time in % for which the foreground was active (its usage degree); `None`: no
    /// foreground ran.
    pub fg_usage: Option<f64>,
    /// Share of the time in % for which each background generator was active.
    pub bg_usage: f64,
    /// Number of background generators.
    pub bg_count: u32,
    /// The measured shares.
    pub shares: Shares,
}

/// A combination of load generators to measure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Resource that the generators use.
    pub resource: Resource,
    /// Share of the time in % for which the foreground is active (its usage degree); `None`: no
    /// foreground runs.
    pub fg_usage: Option<f64>,
    /// Share of the time in % for which each background generator is active.
    pub bg_usage: f64,
    /// Number of background generators.
    pub bg_count: u32,
}

/// All settings: usage degrees from 12.5 to 100 %, 1 to 4 background generators, with and without a
/// foreground. With `quick`, only four usage degrees, and 1 or 4 background generators.
pub fn settings(resources: &[Resource], quick: bool) -> Vec<Setting> {
    let step = if quick { 25.0 } else { 12.5 };
    let degrees: Vec<f64> = (1..=(100.0 / step) as u32)
        .map(|i| step * f64::from(i))
        .collect();
    let counts: &[u32] = if quick { &[1, 4] } else { &[1, 2, 3, 4] };
    let mut all = Vec::new();
    for &resource in resources {
        for &bg_count in counts {
            for &bg_usage in &degrees {
                let fgs = std::iter::once(None).chain(degrees.iter().copied().map(Some));
                all.extend(fgs.map(|fg_usage| Setting {
                    resource,
                    fg_usage,
                    bg_usage,
                    bg_count,
                }));
            }
        }
    }
    all
}

/// The paper's test: contention exists if the background's share of a resource is below the
/// resource's threshold. For the CPU, in addition, less than [`IDLE_BELOW`] of the CPU time must be
/// idle.
pub fn is_contended(shares: &Shares, resource: Resource, cpu: f64, other: f64) -> bool {
    let share = match resource {
        Resource::Disk => shares.disk,
        Resource::Net => shares.net,
        Resource::Cpu => None,
    };
    let below = |share: Option<f64>, threshold: f64| share.is_some_and(|s| s < threshold);
    below(share, other) || (shares.idle < IDLE_BELOW && below(shares.cpu, cpu))
}

/// The accuracy of each pair of thresholds for one resource and the CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AccuracyMap {
    /// Disk or network.
    pub resource: Resource,
    /// Values of the thresholds, for both axes.
    pub steps: Vec<f64>,
    /// Accuracy, first by the index of the resource's threshold, then by the index of the CPU's
    /// threshold.
    pub accuracy: Vec<Vec<f64>>,
    /// Number of windows.
    pub windows: usize,
}

impl AccuracyMap {
    /// Computes the accuracies over the windows of `resource`; `None` if there is no window of the
    /// resource.
    pub fn of(windows: &[Window], resource: Resource) -> Option<Self> {
        let windows: Vec<&Window> = windows.iter().filter(|w| w.resource == resource).collect();
        if windows.is_empty() {
            return None;
        }
        let steps: Vec<f64> = (0..=STEPS).map(|i| i as f64 / STEPS as f64).collect();
        let share_right = |other: f64, cpu: f64| {
            let right = windows
                .iter()
                .filter(|w| is_contended(&w.shares, resource, cpu, other) == w.fg_usage.is_some());
            right.count() as f64 / windows.len() as f64
        };
        let accuracy = steps
            .iter()
            .map(|&other| steps.iter().map(|&cpu| share_right(other, cpu)).collect());
        Some(Self {
            resource,
            accuracy: accuracy.collect(),
            steps: steps.clone(),
            windows: windows.len(),
        })
    }

    /// Returns the most accurate pair. Of equally accurate pairs, the middle threshold of the
    /// resource is selected first and then the middle threshold of the CPU, because a middle value
    /// is farthest from less accurate values.
    pub fn best(&self) -> BestThresholds {
        let most = self.accuracy.iter().flatten().copied().fold(0.0, f64::max);
        let good = |row: &Vec<f64>| row.iter().any(|&a| a >= most);
        let rows: Vec<usize> = (0..self.steps.len())
            .filter(|&i| good(&self.accuracy[i]))
            .collect();
        let row = middle(&rows);
        let columns: Vec<usize> = (0..self.steps.len())
            .filter(|&j| self.accuracy[row][j] >= most)
            .collect();
        let column = middle(&columns);
        BestThresholds {
            share: self.steps[row],
            cpu: self.steps[column],
            accuracy: most,
        }
    }
}

/// The middle index of equally good steps.
fn middle(equals: &[usize]) -> usize {
    equals[equals.len() / 2]
}

/// Returns the CPU's threshold: the value with the highest accuracy over the windows of all maps,
/// where each map uses the best threshold of its own resource. One map alone may not determine the
/// CPU's threshold, because the share of the map's resource may already separate all windows.
pub fn cpu_threshold(maps: &[AccuracyMap]) -> Option<f64> {
    let first = maps.first()?;
    let right = |column: usize| -> f64 {
        let each = maps.iter().map(|map| {
            let row = map.steps.iter().position(|&s| s == map.best().share);
            let accuracy = row.map_or(0.0, |row| map.accuracy[row][column]);
            accuracy * map.windows as f64
        });
        each.sum()
    };
    let all: Vec<f64> = (0..first.steps.len()).map(right).collect();
    let most = all.iter().copied().fold(0.0, f64::max);
    // Apart from rounding, the sums are integers (numbers of windows). A difference below 0.5
    // therefore means equality.
    let good = |&i: &usize| all[i] > most - 0.5;
    let columns: Vec<usize> = (0..all.len()).filter(good).collect();
    Some(first.steps[middle(&columns)])
}

/// The most accurate pair of thresholds for one resource and the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BestThresholds {
    /// Threshold of the disk or the network.
    pub share: f64,
    /// Threshold of the CPU.
    pub cpu: f64,
    /// Share of windows that this pair of thresholds is right about.
    pub accuracy: f64,
}

/// Returns the threshold of the policy IPD, which is the smallest idle share of the CPUs measured
/// while no foreground runs.
pub fn idle_threshold(idle_shares: &[f64]) -> Option<f64> {
    idle_shares
        .iter()
        .copied()
        .filter(|s| s.is_finite())
        .reduce(f64::min)
}

/// Formats the thresholds as the TOML file that `usher` reads.
pub fn thresholds_toml(
    cpu: Option<f64>,
    disk: Option<BestThresholds>,
    net: Option<BestThresholds>,
    idle: Option<f64>,
    minutes: f64,
) -> String {
    let mut lines = Vec::new();
    lines.extend(cpu.map(|cpu| format!("cpu = {cpu:.2}")));
    lines.extend(disk.map(|best| {
        format!(
            "disk = {:.2}  # detects contention correctly in {:.1} % of the windows",
            best.share,
            100.0 * best.accuracy
        )
    }));
    lines.extend(net.map(|best| {
        format!(
            "network = {:.2}  # detects contention correctly in {:.1} % of the windows",
            best.share,
            100.0 * best.accuracy
        )
    }));
    lines.push(format!("idle = {IDLE_BELOW:.2}"));
    lines.extend(idle.map(|idle| {
        format!("ipd_idle = {idle:.2}  # least idle share of a second in {minutes} minutes")
    }));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(fg: bool, disk: f64, cpu: f64, idle: f64) -> Window {
        Window {
            resource: Resource::Disk,
            fg_usage: fg.then_some(50.0),
            bg_usage: 50.0,
            bg_count: 1,
            shares: Shares {
                cpu: Some(cpu),
                disk: Some(disk),
                net: None,
                idle,
            },
        }
    }

    #[test]
    fn a_share_at_its_threshold_is_no_contention() {
        let shares = window(true, 1.0, 0.8, 0.1).shares;
        assert!(!is_contended(&shares, Resource::Disk, 0.8, 1.0));
        assert!(is_contended(&shares, Resource::Disk, 0.85, 1.0));
        let idle = Shares {
            idle: 0.25,
            ..shares
        };
        assert!(!is_contended(&idle, Resource::Disk, 0.85, 1.0));
        assert!(!is_contended(
            &Shares {
                idle: 1.0,
                ..Default::default()
            },
            Resource::Net,
            1.0,
            1.0
        ));
    }

    #[test]
    fn windows_of_the_background_alone_count_false_stops() {
        // Always-on services take 3 % of the disk while the background runs alone. A threshold of
        // 100 % would therefore stop the background without a foreground.
        let windows = [
            window(true, 0.6, 0.5, 0.9),
            window(true, 0.9, 0.5, 0.9),
            window(false, 0.97, 0.5, 0.9),
        ];
        let map = AccuracyMap::of(&windows, Resource::Disk).unwrap();
        let at = |share: f64| map.accuracy[(share * STEPS as f64).round() as usize][0];
        assert_eq!((at(0.5), at(0.95), at(1.0)), (1.0 / 3.0, 1.0, 2.0 / 3.0));
        let best = map.best();
        assert_eq!((best.share, best.accuracy), (0.95, 1.0));
        assert!(AccuracyMap::of(&windows, Resource::Net).is_none());
    }

    #[test]
    fn the_best_of_equals_lies_amid_them() {
        let windows = [window(true, 0.42, 0.5, 0.9), window(false, 0.98, 0.5, 0.9)];
        let best = AccuracyMap::of(&windows, Resource::Disk).unwrap().best();
        assert_eq!(best.accuracy, 1.0);
        assert!((0.65..=0.8).contains(&best.share), "{best:?}");
    }

    #[test]
    fn the_cpus_threshold_is_right_for_all_resources() {
        // The disk's share shows contention with the first foreground; only the CPU's share shows
        // contention with the second foreground.
        let on_disk = [window(true, 0.4, 1.0, 0.1), window(false, 1.0, 1.0, 0.1)];
        let by_cpu = [window(true, 1.0, 0.6, 0.1), window(false, 1.0, 0.9, 0.1)];
        let on_net = by_cpu.map(|w| Window {
            resource: Resource::Net,
            shares: Shares {
                net: w.shares.disk,
                disk: None,
                ..w.shares
            },
            ..w
        });
        let all = [on_disk, on_net].concat();
        let maps = [Resource::Disk, Resource::Net].map(|r| AccuracyMap::of(&all, r).unwrap());
        let cpu = cpu_threshold(&maps).unwrap();
        assert!((0.65..=0.85).contains(&cpu), "{cpu}");
        assert_eq!(cpu_threshold(&[]), None);
    }

    #[test]
    fn settings_cover_the_paper() {
        let all = settings(&[Resource::Disk, Resource::Net], false);
        assert_eq!(all.len(), 2 * 4 * 8 * 9);
        assert!(all.iter().filter(|s| s.fg_usage.is_none()).count() == 2 * 4 * 8);
    }

    #[test]
    fn thresholds_are_written_as_usher_reads_them() {
        let best = |share| BestThresholds {
            share,
            cpu: 0.5,
            accuracy: 0.987,
        };
        let text = thresholds_toml(
            Some(0.85),
            Some(best(1.0)),
            Some(best(0.95)),
            idle_threshold(&[0.8, 0.62, 0.9]),
            30.0,
        );
        assert_eq!(
            text,
            "cpu = 0.85\ndisk = 1.00  # detects contention correctly in 98.7 % of the windows\nnetwork = 0.95  # detects contention correctly in 98.7 % of the windows\nidle = 0.25\nipd_idle = 0.62  # least idle share of a second in 30 minutes\n"
        );
        let read: usher_policy::Thresholds = toml::from_str(&text).unwrap();
        assert_eq!((read.cpu, read.network), (0.85, 0.95));
    }
}
