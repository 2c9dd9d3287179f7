// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creates the dated folder of a benchmark's results, and saves the results and a description of
//! the machine as `result.json`. The page is computed from that file only; the command `format` can
//! therefore write the page again later.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use usher_report::data::MachineFacts;

use crate::bars::{Bar, Part};
use crate::page;

/// Name of the file with the results.
const RESULT: &str = "result.json";

/// Creates a new folder `YYYY-MM-DD-HHMMSS-NAME` below `base`.
pub fn run_folder(base: &Path, name: &str) -> Result<PathBuf> {
    let output = std::process::Command::new("date")
        .arg("+%Y-%m-%d-%H%M%S")
        .output();
    let stamp = String::from_utf8_lossy(&output.context("running date")?.stdout)
        .trim()
        .to_owned();
    let folder = base.join(format!("{stamp}-{name}"));
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder)
}

/// Returns the folder of a run to be resumed, after a check that the folder exists and is not
/// empty.
pub fn begun_folder(folder: PathBuf) -> Result<PathBuf> {
    let shown = folder.display();
    let within = std::fs::read_dir(&folder).with_context(|| format!("--resume {shown}"))?;
    ensure!(
        within.count() > 0,
        "--resume {shown}: the directory contains no run to continue"
    );
    Ok(folder)
}

/// Prints a line on standard output. A closed pipe is no error, because the results are saved.
pub fn print_line(text: impl std::fmt::Display) -> Result<()> {
    use std::io::Write as _;

    // Without the flush, an error of the last write would be lost at the exit.
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("writing to standard output"))
        }
        _ => Ok(()),
    }
}

/// Returns the description of this machine for pages.
pub fn facts() -> Result<MachineFacts> {
    Ok(usher_host::mix::machine_facts(
        &usher_topology::load(usher_topology::Source::ThisMachine)?,
        &usher_probe::Roots::default(),
    ))
}

/// Saves the results from this machine, and prints the path of the page. Returns whether every bar
/// was met.
pub fn finish(folder: &Path, title: &str, parts: &[Part]) -> Result<bool> {
    let page = save(folder, title, &facts()?, parts).context("saving the results")?;
    print_line(format_args!(
        "results saved in {}, report page {}",
        folder.display(),
        page.display()
    ))?;
    Ok(all_met(parts))
}

/// Saves the results from this machine, and prints the saved JSON. Returns whether every bar was
/// met.
pub fn finish_as_json(folder: &Path, title: &str, parts: &[Part]) -> Result<bool> {
    let page = save(folder, title, &facts()?, parts).context("saving the results")?;
    let json = page.with_file_name(RESULT);
    let text =
        std::fs::read_to_string(&json).with_context(|| format!("reading {}", json.display()))?;
    print_line(text)?;
    Ok(all_met(parts))
}

fn all_met(parts: &[Part]) -> bool {
    parts.iter().all(|part| part.bars.iter().all(Bar::is_met))
}

/// Saves the results as JSON, then writes the page from the saved JSON.
pub fn save(folder: &Path, title: &str, machine: &MachineFacts, parts: &[Part]) -> Result<PathBuf> {
    let data = serde_json::json!({
        "title": title,
        "command": std::env::args().collect::<Vec<_>>(),
        "machine": machine,
        "parts": parts,
    });
    let json = folder.join(RESULT);
    std::fs::write(&json, serde_json::to_vec_pretty(&data)?)
        .with_context(|| format!("writing {}", json.display()))?;
    format_saved(&json)
}

/// Writes the page of a saved result.
pub fn format_saved(json: &Path) -> Result<PathBuf> {
    let text = std::fs::read(json).with_context(|| format!("reading {}", json.display()))?;
    let data: serde_json::Value = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not a saved result", json.display()))?;
    let machine: MachineFacts = serde_json::from_value(data["machine"].clone())?;
    let parts: Vec<Part> = serde_json::from_value(data["parts"].clone())?;
    let sections = page::sections(&parts);
    let title = data["title"].as_str().unwrap_or("Benchmark");
    let page = json.with_file_name("report.html");
    std::fs::write(
        &page,
        usher_report::html::bench_page(title, Some(&machine), &sections),
    )?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_only_where_one_was_begun() {
        let folder = tempfile::tempdir().unwrap();
        let error = |folder: &Path| begun_folder(folder.to_owned()).unwrap_err().to_string();
        let gone = folder.path().join("gone");
        assert_eq!(error(&gone), format!("--resume {}", gone.display()));
        assert!(!gone.exists());
        assert!(error(folder.path()).ends_with("the directory contains no run to continue"));
        std::fs::write(folder.path().join("two.jsonl"), "").unwrap();
        assert_eq!(
            begun_folder(folder.path().to_owned()).unwrap(),
            folder.path()
        );
    }
}
