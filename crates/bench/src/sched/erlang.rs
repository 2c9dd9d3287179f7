// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `erlang`: several virtual machines of Erlang, in each of which everyone
//! messages everyone (paper 4).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use usher_lab::Cache;

use super::lab::{Measured, cache};
use super::rival::Rival;
use super::rows::{cell, counted, ends_s, ratio, rivals};
use super::told::{Load, Sample};
use crate::bars::{Bar, Figure, Part, Table};
use crate::coloring::chart::{Chart, Line};

pub const NAME: &str = "erlang";
const TITLE: &str = "Erlang: everyone messages everyone, in 4 to 7 virtual machines";
const PACKAGE: &str = "erlang-base";
const BIG: &str = include_str!("big.erl");

const SWITCHES_AT_MOST: f64 = 0.25;
const ELAPSED_AT_MOST: f64 = 1.02;

/// Debian's Erlang, which is not installed.
#[derive(Debug)]
pub struct Erlang {
    root: PathBuf,
    /// The folder of its programs.
    programs: PathBuf,
}

impl Erlang {
    /// From the lab's cache, where it is fetched to when it is not there.
    pub fn fetched() -> Result<Self> {
        let cache = Cache::open(cache().as_deref())?;
        let root = usher_lab::packages::unpacked(&cache, PACKAGE)?;
        let home = root.join("usr/lib/erlang");
        let entries = fs::read_dir(&home).with_context(|| format!("reading {}", home.display()))?;
        let runtime = entries.flatten().map(|entry| entry.path()).find(|path| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with("erts-")
        });
        let runtime = runtime.with_context(|| format!("no runtime in {}", home.display()))?;
        Ok(Self {
            programs: runtime.join("bin"),
            root,
        })
    }

    /// As its runtime names itself: `erts-13.1.5`.
    pub fn version(&self) -> String {
        let name = self.programs.parent().and_then(Path::file_name);
        name.unwrap_or_default().to_string_lossy().into_owned()
    }

    fn program(&self) -> PathBuf {
        self.programs.join("erlexec")
    }

    /// What its script `erl` sets, and where what it needs was unpacked to.
    fn environment(&self) -> BTreeMap<String, String> {
        let home = self.root.join("usr/lib/erlang");
        let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
        let libraries = libraries.map(|dir| self.root.join(dir).display().to_string());
        let all = [
            ("ROOTDIR", home.display().to_string()),
            ("BINDIR", self.programs.display().to_string()),
            ("EMU", "beam".to_owned()),
            ("PROGNAME", "erl".to_owned()),
            ("LD_LIBRARY_PATH", libraries.join(":")),
        ];
        all.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Compiles the benchmark into a folder.
    fn compile(&self, into: &Path) -> Result<()> {
        fs::create_dir_all(into).with_context(|| format!("making {}", into.display()))?;
        let source = into.join("big.erl");
        fs::write(&source, BIG).with_context(|| format!("writing {}", source.display()))?;
        let compile = "case compile:file(\"big.erl\") of {ok, _} -> halt(0); _ -> halt(1) end.";
        let output = Command::new(self.program())
            .args(["-noshell", "-boot", "start_clean", "-eval", compile])
            .envs(self.environment())
            .current_dir(into)
            .stdin(Stdio::null())
            .output()
            .context("starting Erlang")?;
        ensure!(
            output.status.success(),
            "Erlang does not compile {}: {}",
            source.display(),
            String::from_utf8_lossy(&output.stdout).trim()
        );
        Ok(())
    }

    /// Virtual machines of two schedulers and so many processes, that many at once.
    pub fn load(&self, folder: &Path, vms: Vec<usize>, processes: usize) -> Result<Load> {
        let folder = folder.join("erlang");
        self.compile(&folder)?;
        let folder = fs::canonicalize(&folder).context("finding the folder of results")?;
        let program = self.program().display().to_string();
        let path = folder.display().to_string();
        let processes = processes.to_string();
        // Nobody spins for work: where CPUs take turns, that is time of others.
        let words = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -noshell -boot start_clean";
        let command = [program.as_str()].into_iter().chain(words.split(' '));
        let run = ["-pa", &path, "-run", "big", "start", &processes];
        Ok(Load::Erlang {
            vms,
            command: command.chain(run).map(str::to_owned).collect(),
            environment: self.environment(),
        })
    }
}

/// What one scheduler came to with one number of virtual machines.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    rival: Rival,
    vms: usize,
    switches: Option<f64>,
    spaces: Option<f64>,
    first_s: Option<f64>,
    last_s: Option<f64>,
}

impl Row {
    fn of(rival: &Rival, vms: usize, samples: &[&Sample]) -> Self {
        let is_it = |sample: &&Sample| sample.rival == *rival && sample.programs == vms;
        let of_it: Vec<&Sample> = samples.iter().copied().filter(is_it).collect();
        let ends = ends_s(&of_it);
        Self {
            rival: rival.clone(),
            vms,
            switches: counted(&of_it, |c| c.switches as f64),
            spaces: counted(&of_it, |c| c.space_switches as f64),
            first_s: ends.map(|(first, _)| first),
            last_s: ends.map(|(_, last)| last),
        }
    }

    fn cells(&self, eevdf: Option<&Self>) -> Vec<String> {
        let spaces = ratio(self.spaces, eevdf.and_then(|row| row.spaces));
        let elapsed = ratio(self.last_s, eevdf.and_then(|row| row.last_s));
        vec![
            self.vms.to_string(),
            self.rival.label(),
            cell(self.switches, 0),
            cell(self.spaces, 0),
            cell(spaces, 2),
            format!("{} to {}", cell(self.first_s, 2), cell(self.last_s, 2)),
            cell(elapsed, 3),
        ]
    }
}

fn rows(measured: &Measured) -> Vec<Row> {
    let samples: Vec<&Sample> = measured.samples.iter().filter(|s| s.part == NAME).collect();
    let mut numbers: Vec<usize> = samples.iter().map(|sample| sample.programs).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let each = rivals(&samples);
    let of_number = |&vms: &usize| {
        let rows = each.iter().map(|rival| Row::of(rival, vms, &samples));
        rows.filter(|row| row.spaces.is_some()).collect::<Vec<_>>()
    };
    numbers.iter().flat_map(of_number).collect()
}

fn find<'a>(rows: &'a [Row], rival: &Rival, vms: usize) -> Option<&'a Row> {
    rows.iter()
        .find(|row| row.rival == *rival && row.vms == vms)
}

/// The part.
pub fn part(measured: &Measured, notes: Vec<String>) -> Result<Part> {
    let rows = rows(measured);
    let mut part = Part::new(NAME, TITLE);
    part.figures = vec![figure(&rows)];
    part.figures.retain(|figure| !figure.svg.is_empty());
    let head = [
        "virtual machines",
        "scheduler",
        "switches",
        "of address spaces",
        "to EEVDF's",
        "ended after, s",
        "the last, to EEVDF's",
    ];
    let cells = |row: &Row| row.cells(find(&rows, &Rival::Eevdf, row.vms));
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(cells).collect(),
    }];
    part.bars = bars(&rows);
    part.notes = notes;
    let samples = measured.samples.iter().filter(|s| s.part == NAME);
    part.raw = serde_json::to_value(samples.collect::<Vec<_>>())?;
    Ok(part)
}

fn figure(rows: &[Row]) -> Figure {
    let caption = "Switches to another address space, by the number of virtual machines";
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let Some(spaces) = row.spaces else { continue };
        let (name, point) = (row.rival.label(), (row.vms as f64, spaces));
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                class: row.rival.class(),
                name,
                points: vec![point],
                compared: row.rival != Rival::Usher,
            }),
        }
    }
    let chart = Chart {
        title: caption.to_owned(),
        x: "virtual machines",
        y: "switches",
        logarithmic: false,
        mark: None,
        lines,
    };
    Figure {
        caption: caption.to_owned(),
        svg: chart.svg(),
    }
}

fn bars(rows: &[Row]) -> Vec<Bar> {
    let ours: Vec<&Row> = rows
        .iter()
        .filter(|row| row.rival == Rival::Usher)
        .collect();
    let Some(most) = rows.iter().map(|row| row.vms).max() else {
        return vec![];
    };
    let at_most = ours.iter().find(|row| row.vms == most);
    let spaces = |rival: &Rival| find(rows, rival, most).and_then(|row| row.spaces);
    let our_spaces = at_most.and_then(|row| row.spaces);
    let against = |name: &str, rival: &Rival, limit| {
        let what = format!("{most} virtual machines: address-space switches, ours to {name}'s");
        Bar::at_most(what, ratio(our_spaces, spaces(rival)), limit, "")
    };
    let mut bars = vec![against("EEVDF", &Rival::Eevdf, SWITCHES_AT_MOST)];
    let peers = rows
        .iter()
        .filter(|row| row.rival.is_peer() && row.vms == most);
    bars.extend(peers.map(|peer| against(&peer.rival.label(), &peer.rival, 1.0)));
    let elapsed = |row: &&Row| {
        let eevdf = find(rows, &Rival::Eevdf, row.vms).and_then(|row| row.last_s);
        ratio(row.last_s, eevdf)
    };
    let worst: Option<Vec<f64>> = ours.iter().map(elapsed).collect();
    let worst = worst.and_then(|all| all.into_iter().reduce(f64::max));
    let what = "any number: the last one's end, ours to EEVDF's";
    bars.push(Bar::at_most(what, worst, ELAPSED_AT_MOST, ""));
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::rows::tests::sample;

    fn measured() -> Measured {
        let one = |rival, vms, spaces| sample(rival, NAME, vms, [2 * spaces, spaces]);
        let mut late = one(Rival::Usher, 7, 100);
        late.ends_s = vec![1.0, 2.1];
        Measured {
            samples: vec![
                one(Rival::Eevdf, 4, 400),
                one(Rival::Eevdf, 7, 1000),
                one(Rival::Usher, 4, 300),
                late,
            ],
            left_out: vec![],
        }
    }

    #[test]
    fn the_most_machines_are_held_against_the_bar() {
        let part = part(&measured(), vec![]).unwrap();
        let bars: Vec<(f64, bool)> = part
            .bars
            .iter()
            .map(|bar| (bar.measured.unwrap(), bar.is_met()))
            .collect();
        assert_eq!(bars, [(0.1, true), (1.05, false)]);
        let rows = &part.tables[0].rows;
        assert_eq!(rows[1][..5], ["4", "ours", "600", "300", "0.75"]);
        assert_eq!(rows[3][4..], ["0.10", "1.00 to 2.10", "1.050"]);
        assert_eq!(part.figures[0].svg.matches("<circle").count(), 4);
        assert!(
            super::part(&Measured::default(), vec![])
                .unwrap()
                .bars
                .is_empty()
        );
    }
}
