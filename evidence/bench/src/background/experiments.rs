// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiments as data: paper 2's combinations of foreground, background, disk and usage
//! degree, with current tools and further disks. Each combination is a cell of the matrix, which
//! the module `cell` measures. The usage degree is the share of the time for which a load generator
//! is active.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A program that runs in foreground or background.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// The paper's disk benchmark
    Disk,
    /// The paper's network benchmark
    Net,
    /// `stress-ng` that computes on every CPU
    CpuHog,
    /// `gmx mdrun`, with a thread for each CPU
    Gromacs,
    /// `stress-ng` that computes on every CPU, with a checkpoint every five seconds
    Boinc,
    /// `fftw-wisdom`
    FftwWisdom,
    /// A build of zlib on every CPU
    Make,
    /// `pcre2grep` over a source tree that is not in the page cache
    Grep,
    /// `e2fsck -fn` over and over
    Fsck,
    /// `scp` of a file
    Scp,
    /// `iperf3`
    Iperf,
}

impl Task {
    /// Name of the task on the command line and on the page.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Net => "net",
            Self::CpuHog => "cpu",
            Self::Gromacs => "gromacs",
            Self::Boinc => "boinc",
            Self::FftwWisdom => "fftw-wisdom",
            Self::Make => "make",
            Self::Grep => "grep",
            Self::Fsck => "fsck",
            Self::Scp => "scp",
            Self::Iperf => "iperf3",
        }
    }

    /// Whether the task reads a disk.
    pub fn uses_disk(self) -> bool {
        matches!(self, Self::Disk | Self::Grep | Self::Fsck)
    }

    /// Whether the task mainly uses the CPU.
    pub fn uses_cpu(self) -> bool {
        matches!(
            self,
            Self::CpuHog | Self::Gromacs | Self::Boinc | Self::FftwWisdom | Self::Make
        )
    }

    /// The external program that the task needs, and the Debian package that contains the program.
    pub fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Gromacs => Some(("gmx", "gromacs")),
            Self::FftwWisdom => Some(("fftw-wisdom", "libfftw3-bin")),
            Self::Make => Some(("make", "make")),
            Self::Grep => Some(("pcre2grep", "pcre2-utils")),
            Self::Fsck => Some(("e2fsck", "e2fsprogs")),
            Self::Scp => Some(("sshd", "openssh-server")),
            Self::Iperf => Some(("iperf3", "iperf3")),
            Self::CpuHog | Self::Boinc => Some(("stress-ng", "stress-ng")),
            Self::Disk | Self::Net => None,
        }
    }
}

/// Whether an external program is installed.
pub fn is_installed(program: &str) -> bool {
    let dirs = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];
    dirs.iter()
        .any(|dir| std::path::Path::new(dir).join(program).exists())
}

/// A disk with its I/O scheduler.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum DiskSetup {
    /// This disk with mq-deadline
    Deadline,
    /// This disk with BFQ
    Bfq,
    /// The slow one-head disk with mq-deadline
    Slow,
    /// The slow one-head disk with BFQ
    SlowBfq,
}

impl DiskSetup {
    /// Name of the disk on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Bfq => "bfq",
            Self::Slow => "slow",
            Self::SlowBfq => "slow-bfq",
        }
    }

    /// Name of the I/O scheduler of this disk.
    pub fn scheduler(self) -> &'static str {
        match self {
            Self::Deadline | Self::Slow => "mq-deadline",
            Self::Bfq | Self::SlowBfq => "bfq",
        }
    }

    /// Whether the disk is the emulated slow disk.
    pub fn is_slow(self) -> bool {
        matches!(self, Self::Slow | Self::SlowBfq)
    }
}

/// Experiments that the page shows together.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Figure 2 (a): the disk benchmark
    Disk,
    /// Figure 2 (b): the network benchmark
    Net,
    /// Figure 3: computing beside real programs
    Cpu,
    /// Figure 4: e2fsck beside real programs
    Fsck,
    /// Figure 5: scp under scp, iperf3 under iperf3
    Transfer,
}

impl Group {
    /// Heading of the group on the page.
    pub fn title(self) -> &'static str {
        match self {
            Self::Disk => "Disk benchmark in the foreground and in the background (figure 2a)",
            Self::Net => "Network benchmark in the foreground and in the background (figure 2b)",
            Self::Cpu => {
                "Foreground fftw-wisdom, make and pcre2grep; the background computes (figure 3)"
            }
            Self::Fsck => {
                "Foreground fftw-wisdom, make and pcre2grep; e2fsck in the background (figure 4)"
            }
            Self::Transfer => "File transfers in the foreground and in the background (figure 5)",
        }
    }
}

/// One cell of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Group of the page in which the cell is shown.
    pub group: Group,
    /// Task in the foreground.
    pub fg: Task,
    /// Task in the background.
    pub bg: Task,
    /// Number of background programs.
    pub bg_count: u32,
    /// The disk that the foreground or the background uses; `None`: neither uses a disk.
    pub place: Option<DiskSetup>,
    /// Share of the time in % for which each load generator is active, in foreground and background
    /// (the usage degree).
    pub usage: f64,
}

impl Cell {
    /// Name of the cell, also of the file with the cell's result.
    pub fn id(&self) -> String {
        let place = self
            .place
            .map_or(String::new(), |p| format!("-{}", p.name()));
        let usage = match self.fg {
            Task::Disk | Task::Net => format!("-u{}", self.usage),
            _ => String::new(),
        };
        format!(
            "{}-under-{}{usage}-x{}{place}",
            self.bg.name(),
            self.fg.name(),
            self.bg_count
        )
    }
}

/// Returns all cells; with `quick`, fewer usage degrees and fewer numbers of background programs.
pub fn matrix(quick: bool) -> Vec<Cell> {
    let usages: &[f64] = if quick {
        &[25.0, 100.0]
    } else {
        &[12.5, 25.0, 50.0, 75.0, 100.0]
    };
    let counts: &[u32] = if quick { &[1, 4] } else { &[1, 2, 3, 4] };
    let places = [
        DiskSetup::Deadline,
        DiskSetup::Bfq,
        DiskSetup::Slow,
        DiskSetup::SlowBfq,
    ];
    let mut cells = Vec::new();
    let micro = |group, task, place: Option<DiskSetup>| {
        let all = usages
            .iter()
            .flat_map(|&usage| counts.iter().map(move |&count| (usage, count)));
        all.map(move |(usage, bg_count)| Cell {
            group,
            fg: task,
            bg: task,
            bg_count,
            place,
            usage,
        })
    };
    for place in places {
        cells.extend(micro(Group::Disk, Task::Disk, Some(place)));
    }
    cells.extend(micro(Group::Net, Task::Net, None));
    let real = [Task::FftwWisdom, Task::Make, Task::Grep];
    let whole = |group, fg, bg, place| Cell {
        group,
        fg,
        bg,
        bg_count: 1,
        place,
        usage: 100.0,
    };
    for bg in [Task::CpuHog, Task::Gromacs, Task::Boinc] {
        let place = |fg| (fg == Task::Grep).then_some(DiskSetup::Deadline);
        cells.extend(real.iter().map(|&fg| whole(Group::Cpu, fg, bg, place(fg))));
    }
    for place in places {
        // The sources that `make` compiles are in the page cache. The result of `make` therefore
        // does not depend on the disk.
        let fgs = real
            .iter()
            .filter(|&&fg| fg == Task::Grep || place == DiskSetup::Deadline);
        cells.extend(fgs.map(|&fg| whole(Group::Fsck, fg, Task::Fsck, Some(place))));
    }
    for task in [Task::Scp, Task::Iperf] {
        cells.extend(counts.iter().map(|&bg_count| Cell {
            bg_count,
            ..whole(Group::Transfer, task, task, None)
        }));
    }
    cells
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_cell_has_a_name_of_its_own() {
        for quick in [true, false] {
            let cells = matrix(quick);
            let names: BTreeSet<_> = cells.iter().map(Cell::id).collect();
            assert_eq!(names.len(), cells.len());
        }
    }

    #[test]
    fn the_papers_experiments_are_in_the_matrix() {
        let names: BTreeSet<_> = matrix(false).iter().map(Cell::id).collect();
        for name in [
            "disk-under-disk-u12.5-x4-deadline",
            "net-under-net-u100-x3",
            "gromacs-under-fftw-wisdom-x1",
            "boinc-under-make-x1",
            "cpu-under-grep-x1-deadline",
            "fsck-under-grep-x1-slow",
            "scp-under-scp-x4",
            "iperf3-under-iperf3-x2",
        ] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn cells_that_use_a_disk_say_which() {
        for cell in matrix(false) {
            let uses = cell.fg.uses_disk() || cell.bg.uses_disk();
            assert_eq!(cell.place.is_some(), uses, "{}", cell.id());
        }
    }
}
