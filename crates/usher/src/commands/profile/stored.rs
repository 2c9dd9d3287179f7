// SPDX-License-Identifier: GPL-2.0-only
//! `usher profile list|show|rm|export|import`: lists, prints, deletes and exchanges stored profiles.
//!
//! A profile is named by the name of its program or by its identifier, which `list` prints. A name
//! may mean several profiles: of other arguments, or of other machines. An identifier means one.
//! `docs/profiles.md` describes the format of exported profiles.
//!
//! - `list`, `show` and `export` also read a store that cannot be written. A store that does not
//!   exist yet has no profiles; a store that cannot be created is an error.
//! - `rm` deletes all profiles that the given words mean, or none if one word means no profile.
//! - `export` of no profile is an error.
//! - `import` checks the whole file before it changes the store. Profiles that the store already has
//!   are kept, unless `--replace` is given.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use usher_model::Curve;
use usher_report::figure::measured_speed_up;
use usher_report::{table, text as words};
use usher_store::{MachineKey, ProfileEntry, Store, exchange};

use crate::answers::{
    ExportAnswer, ImportAnswer, ProfileAnswer, ProfileList, ProfileName, Profiles, RemoveAnswer,
};
use crate::commands::status;
use crate::failure::{self, Outcome};
use crate::machine::usable_machine;
use crate::measure;
use crate::output::{self, Output};
use crate::runtime;

/// Length of a day in seconds.
const DAY_S: i64 = 86_400;

/// A command about stored profiles.
#[derive(Debug, clap::Subcommand)]
pub enum StoredCommand {
    /// Lists the stored profiles
    #[command(after_help = "\
Examples:
  usher profile list
  usher profile list --json | jq -r '.profiles[].name'")]
    List,
    /// Prints stored profiles with their scalability curves
    #[command(after_help = "\
Examples:
  usher profile show x264
  usher profile show 5f0c31aa --json")]
    Show {
        /// Print the profiles with these names or identifiers
        #[arg(required = true, value_name = "NAME|ID")]
        profiles: Vec<String>,
    },
    /// Deletes stored profiles
    #[command(after_help = "\
Examples:
  usher profile rm x264            delete every profile with this name
  usher profile rm 5f0c31aa        delete one profile")]
    Rm {
        /// Delete the profiles with these names or identifiers
        #[arg(required = true, value_name = "NAME|ID")]
        profiles: Vec<String>,
    },
    /// Writes stored profiles as JSON
    #[command(after_help = "\
Examples:
  usher profile export > profiles.json
  usher profile export x264 --out x264.json")]
    Export {
        /// Write the profiles with these names or identifiers; by default, all profiles
        #[arg(value_name = "NAME|ID")]
        profiles: Vec<String>,
        /// Write to FILE; by default, to the standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Adds profiles from a file that `usher profile export` has written
    #[command(after_help = "\
The whole file is checked before a profile is stored.

Examples:
  usher profile import profiles.json
  ssh host usher profile export | usher profile import -")]
    Import {
        /// Read FILE; `-` reads the standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Replace profiles that the store already has; by default, these profiles are kept
        #[arg(long)]
        replace: bool,
    },
}

/// Runs the command on the given store.
pub fn run(command: &StoredCommand, store: Option<&Path>, out: Output) -> Outcome {
    let path = runtime::store_path(store);
    match command {
        StoredCommand::List => list(&all(&path)?, &path, out)?,
        StoredCommand::Show { profiles } => show(&selected(&all(&path)?, profiles, &path)?, out)?,
        StoredCommand::Rm { profiles } => remove(profiles, &path, out)?,
        StoredCommand::Export { profiles, out: to } => {
            let all = all(&path)?;
            let chosen = match profiles.is_empty() {
                true => all,
                false => selected(&all, profiles, &path)?,
            };
            export(&chosen, &path, to.as_deref(), out)?;
        }
        StoredCommand::Import { file, replace } => import(file, *replace, &path, out)?,
    }
    Ok(0)
}

/// Returns all profiles; none if the store does not exist yet. The store is not created.
///
/// # Errors
/// The store cannot be read, or does not exist and cannot be created.
fn all(path: &Path) -> anyhow::Result<Vec<ProfileEntry>> {
    let Some(readable) = Store::open_if_present(path)? else {
        return Ok(Vec::new());
    };
    if readable.lacks_log {
        failure::print_error(&format!(
            "the profile store {0} was read without its log ({0}-wal), so that recent profiles may \
             be missing: copy both files to a file system that can be written, and name the copy by \
             --store",
            path.display()
        ));
    }
    Ok(readable.store.list()?)
}

/// Returns the profiles that the words mean, each once, in the order of `all`.
fn selected(
    all: &[ProfileEntry],
    words: &[String],
    path: &Path,
) -> anyhow::Result<Vec<ProfileEntry>> {
    let mut chosen: Vec<String> = Vec::new();
    for word in words {
        let ids: Vec<String> = match all.iter().find(|entry| entry.id() == *word) {
            Some(entry) => vec![entry.id()],
            None => {
                let named = output::named(all, |entry| &entry.profile.name, word);
                named.into_iter().map(ProfileEntry::id).collect()
            }
        };
        if ids.is_empty() {
            let names = all.iter().map(|entry| entry.profile.name.as_str());
            let similar = usher_model::closest_name(word, names);
            let tip = similar.map_or_else(String::new, |name| format!("; similar: '{name}'"));
            bail!(
                "the profile store {} has no profile '{word}'{tip}; see 'usher profile list'",
                path.display()
            );
        }
        chosen.extend(ids);
    }
    let chosen = all.iter().filter(|entry| chosen.contains(&entry.id()));
    Ok(chosen.cloned().collect())
}

fn list(all: &[ProfileEntry], path: &Path, out: Output) -> anyhow::Result<()> {
    let here = here();
    let value = ProfileList {
        store: path.to_owned(),
        profiles: (all.iter())
            .map(|entry| described(entry, here.as_ref()))
            .collect(),
    };
    out.answer(&value, || {
        if all.is_empty() {
            return format!(
                "the profile store {} has no profiles; `usher profile -- CMD` measures one",
                path.display()
            );
        }
        let head = ["NAME", "ID", "CORES", "SPEED-UP", "RUNS", "AGE", "MACHINE"];
        let rows = all.iter().map(|entry| row(entry, here.as_ref()).to_vec());
        let rows: Vec<_> = std::iter::once(head.map(str::to_owned).to_vec())
            .chain(rows)
            .collect();
        output::columns(&rows)
    })
}

/// Returns the kind of this machine; `None` if it cannot be read.
fn here() -> Option<MachineKey> {
    usable_machine()
        .ok()
        .map(|machine| MachineKey::of(&machine))
}

fn row(entry: &ProfileEntry, here: Option<&MachineKey>) -> [String; 7] {
    let curve = entry.profile.curve();
    let cores = curve.as_ref().map(|(curve, _)| {
        let cores = curve.points().iter().map(|p| words::short(p.cores, 2));
        cores.collect::<Vec<_>>().join(",")
    });
    let best = curve.as_ref().and_then(|(curve, _)| best_speed_up(curve));
    [
        output::shown(&entry.profile.name),
        entry.id(),
        cores.unwrap_or_else(|| words::NONE.to_owned()),
        words::number(best, 2),
        entry.profile.runs.to_string(),
        age(entry.profile.at_s),
        match here == Some(&entry.machine) {
            true => "this machine".to_owned(),
            false => output::shown(entry.machine.as_str()),
        },
    ]
}

/// Returns the highest measured speed-up over one core; `None` if the curve has fewer than two
/// points.
fn best_speed_up(curve: &Curve) -> Option<f64> {
    let points = curve.points().iter();
    points
        .filter_map(|p| measured_speed_up(curve, p.cores))
        .max_by(f64::total_cmp)
}

/// Returns the seconds since 1970.
fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs().cast_signed())
}

/// Returns the time since a measurement, in whole days from two days on.
pub fn age(at_s: i64) -> String {
    let seconds = now_s().saturating_sub(at_s).max(0);
    match seconds / DAY_S {
        0 | 1 => status::duration(seconds as f64),
        days => format!("{days} days"),
    }
}

/// Returns the JSON value of a profile: the exported fields, the identifier, and whether the
/// profile is used on this machine.
fn described(entry: &ProfileEntry, here: Option<&MachineKey>) -> ProfileAnswer {
    let profile = &entry.profile;
    let (curve, source) = profile.curve().unzip();
    ProfileAnswer {
        id: entry.id(),
        name: profile.name.clone(),
        executable: entry.key.executable.clone(),
        arguments: entry.key.arguments.clone(),
        machine: entry.machine.clone(),
        is_this_machine: here == Some(&entry.machine),
        runs: profile.runs,
        at_s: profile.at_s,
        source,
        speed_up: curve.as_ref().and_then(best_speed_up),
        curve,
        spinners: profile.spinners,
        active_wait: profile.active_wait,
        llc_bytes: profile.llc_bytes,
        bandwidth_gbps: profile.bandwidth_gbps,
        cpus_per_copy: profile.copies.map(|copies| copies.cpus_per_copy),
    }
}

fn show(chosen: &[ProfileEntry], out: Output) -> anyhow::Result<()> {
    let here = here();
    let value = Profiles {
        profiles: (chosen.iter())
            .map(|entry| described(entry, here.as_ref()))
            .collect(),
    };
    out.answer(&value, || {
        let texts: Vec<_> = chosen
            .iter()
            .map(|entry| shown_profile(entry, out))
            .collect();
        texts.join("\n")
    })
}

fn shown_profile(entry: &ProfileEntry, out: Output) -> String {
    let profile = &entry.profile;
    let curve = profile.curve();
    let arguments = match entry.key.arguments.as_str() {
        "" => words::NONE,
        arguments => arguments,
    };
    let source = curve.as_ref().map(|(_, source)| source.to_string());
    let cpus_per_copy = profile.copies.map_or_else(
        || words::NONE.to_owned(),
        |copies| format!("{} of {}", copies.cpus_per_copy, copies.program_cpus),
    );
    let facts = [
        ("name", profile.name.as_str()),
        ("identifier", &entry.id()),
        ("executable", &entry.key.executable),
        ("arguments", arguments),
        ("machine", entry.machine.as_str()),
        ("runs", &profile.runs.to_string()),
        ("last run", &format!("{} ago", age(profile.at_s))),
        ("progress", source.as_deref().unwrap_or(words::NONE)),
        ("spinning threads", &profile.spinners.to_string()),
        ("CPUs per copy", &cpus_per_copy),
    ];
    let rows = facts.map(|(name, value)| vec![name.to_owned(), output::shown(value)]);
    let mut text = output::columns(&rows);
    if let Some((curve, _)) = curve {
        text.push_str(&format!(
            "\n{}\n",
            table::profile(&curve, measure::style(out))
        ));
    }
    text
}

fn remove(words: &[String], path: &Path, out: Output) -> anyhow::Result<()> {
    let chosen = selected(&all(path)?, words, path)?;
    Store::open(path)?.remove(&chosen)?;
    let value = RemoveAnswer {
        removed: summaries(&chosen),
    };
    out.answer(&value, || lines("removed", &chosen))
}

/// Returns the names and identifiers of profiles.
fn summaries(entries: &[ProfileEntry]) -> Vec<ProfileName> {
    let summary = |entry: &ProfileEntry| ProfileName {
        id: entry.id(),
        name: entry.profile.name.clone(),
    };
    entries.iter().map(summary).collect()
}

/// Returns one line per profile: what was done, and to which profile.
fn lines(done: &str, entries: &[ProfileEntry]) -> String {
    let line = |entry: &ProfileEntry| {
        format!(
            "{done} the profile {} ({}): {}, {}\n",
            output::shown(&entry.profile.name),
            entry.id(),
            words::count(entry.profile.points.len(), "point"),
            words::count(entry.profile.runs as usize, "run"),
        )
    };
    entries.iter().map(line).collect()
}

fn export(
    chosen: &[ProfileEntry],
    store: &Path,
    to: Option<&Path>,
    out: Output,
) -> anyhow::Result<()> {
    if chosen.is_empty() {
        bail!(
            "there is nothing to export, because the profile store {} has no profiles",
            store.display()
        );
    }
    // A profile without points has nothing that another store could use.
    let chosen = chosen.iter().filter(|one| !one.profile.points.is_empty());
    let chosen: Vec<ProfileEntry> = chosen.cloned().collect();
    if chosen.is_empty() {
        bail!(
            "there is nothing to export, because the selected profiles have no measured points: \
             `usher profile -- CMD` measures a program"
        );
    }
    let text = exchange::write(&chosen)?;
    match to {
        None => out.text(&text),
        Some(file) => {
            fs::write(file, text + "\n")
                .with_context(|| format!("writing the profiles '{}'", file.display()))?;
            let value = ExportAnswer::Written {
                exported: summaries(&chosen),
                file: file.to_owned(),
            };
            out.answer(&value, || lines("exported", &chosen))
        }
    }
}

fn import(file: &Path, replace: bool, path: &Path, out: Output) -> anyhow::Result<()> {
    let about = || match file == Path::new("-") {
        true => "reading the profiles from the standard input".to_owned(),
        false => format!("reading the profiles '{}'", file.display()),
    };
    let bytes = read_limited(file).with_context(about)?;
    let entries = exchange::read(&bytes, now_s()).with_context(about)?;
    let entries = entries.into_iter().map(as_stored);
    let mut store = Store::open(path)?;
    let known: Vec<String> = store.list()?.iter().map(ProfileEntry::id).collect();
    let is_known = |entry: &ProfileEntry| known.contains(&entry.id());
    let (kept, added): (Vec<_>, Vec<_>) = entries.partition(|entry| !replace && is_known(entry));
    store.replace(&added)?;
    let value = ImportAnswer {
        imported: summaries(&added),
        kept: summaries(&kept),
    };
    out.answer(&value, || {
        let here = here();
        let foreign = added
            .iter()
            .filter(|one| Some(&one.machine) != here.as_ref());
        let mut text = lines("imported", &added);
        for entry in &kept {
            text.push_str(&format!(
                "kept the stored profile {} ({}); `--replace` replaces it\n",
                output::shown(&entry.profile.name),
                entry.id()
            ));
        }
        match foreign.count() {
            0 => {}
            count => text.push_str(&format!(
                "{} of another kind of machine, which this machine does not use\n",
                words::count(count, "profile")
            )),
        }
        text
    })
}

/// Returns a profile with the key that it has in the store: with redacted arguments. The identifier
/// of the profile is a hash of the key.
fn as_stored(entry: ProfileEntry) -> ProfileEntry {
    ProfileEntry {
        key: Store::stored_key(&entry.key),
        ..entry
    }
}

/// Reads a file, or the standard input, up to one byte more than the format permits.
fn read_limited(file: &Path) -> std::io::Result<Vec<u8>> {
    let limit = exchange::BYTES_MAX as u64 + 1;
    let mut bytes = Vec::new();
    match file == Path::new("-") {
        true => std::io::stdin().take(limit).read_to_end(&mut bytes)?,
        false => usher_topology::file::open(file)?
            .take(limit)
            .read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_of_profiles_without_points_states_the_reason() {
        let text = r#"{"format": "usher-profiles", "version": 1, "profiles": [{
            "name": "zip", "executable": "hash:01", "arguments": "", "machine": "another",
            "runs": 1, "at_s": 1, "points": [{"source": "repetition", "cores": 1.0, "rate": 2.0,
            "relative_error": 0.1, "at_s": 1, "runs": 1}]}]}"#;
        let mut profiles = exchange::read(text.as_bytes(), now_s()).unwrap();
        profiles[0].profile.points.clear();
        let out = Output {
            json: false,
            color: false,
        };
        let reason = |profiles: &[ProfileEntry]| {
            let error = export(profiles, Path::new("store.db"), None, out).unwrap_err();
            error.to_string()
        };
        assert!(reason(&profiles).contains("the selected profiles have no measured points"));
        assert!(reason(&[]).ends_with("the profile store store.db has no profiles"));
    }
}
