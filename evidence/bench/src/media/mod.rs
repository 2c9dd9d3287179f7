// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench media`: compares FFmpeg's VVC decoder and the HEVC encoder kvazaar on usher-tasks
//! with the same programs on their own thread pools.
//!
//! `examples/media/run` fetches and builds both programs. Each of them has one replaced source file.

mod misses;
mod time;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::Serialize;

use crate::bars::Part;
use crate::machine;

/// The parts, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MediaPart {
    /// Outputs and times with 1 and 2 threads
    Time,
    /// Instructions and last-level misses, simulated by cachegrind
    Misses,
}

/// Compares FFmpeg's VVC decoder and kvazaar on usher-tasks with their own thread pools
///
/// Fetches and builds both programs first, by `examples/media/run`. Exit status: 0 if every bar is
/// met, 1 if a bar is missed, 125 if the benchmark could not run.
///
/// More: examples/media/README.md
#[derive(Debug, Clone, clap::Args)]
pub struct MediaArgs {
    /// Run only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<MediaPart>,
    /// Directory of the examples
    #[arg(long, default_value = "examples/media", value_name = "DIR")]
    examples: PathBuf,
    /// Run this many rounds of the part `time`
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(6..))]
    rounds: u32,
    /// Decode this many frames in the part `misses`
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    frames: u32,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: PathBuf,
    /// Print the saved result as JSON
    #[arg(long)]
    json: bool,
}

/// The thread pool of a program, and the order of its ready tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Pool {
    /// The program's own.
    Own,
    /// usher-tasks with the policy FCFS.
    Fcfs,
    /// usher-tasks with the default policy.
    Usher,
}

impl Pool {
    const ALL: [Self; 3] = [Self::Own, Self::Fcfs, Self::Usher];

    fn label(self) -> &'static str {
        match self {
            Self::Own => "own pool",
            Self::Fcfs => "usher-tasks, FCFS",
            Self::Usher => "usher-tasks",
        }
    }
}

/// A program with its input.
#[derive(Debug, Clone)]
struct Case {
    label: &'static str,
    /// The programs with their own pool and with usher-tasks.
    programs: [PathBuf; 2],
    input: PathBuf,
    is_decoder: bool,
}

impl Case {
    /// Returns the command line that decodes or encodes, behind `words` such as those of valgrind.
    /// The output is dropped, or written to `output`: the encoded bytes, or the MD5 of each decoded
    /// frame.
    fn command(
        &self,
        words: &[String],
        pool: Pool,
        threads: u32,
        frames: Option<u32>,
        output: Option<&Path>,
    ) -> Command {
        let program = &self.programs[usize::from(pool != Pool::Own)];
        let threads = threads.to_string();
        let frames = frames.map(|frames| frames.to_string());
        let mut command = Command::new("timeout");
        command.args(["--foreground", "3000"]).args(words);
        command.arg(program).env(
            "USHER_MEDIA_POLICY",
            if pool == Pool::Fcfs { "fcfs" } else { "usher" },
        );
        if self.is_decoder {
            command.args(["-nostdin", "-y", "-v", "quiet", "-threads", &threads, "-i"]);
            command.arg(&self.input).args(["-fps_mode", "passthrough"]);
            command.args(frames.iter().flat_map(|frames| ["-frames:v", frames]));
            match output {
                Some(output) => command.args(["-f", "framemd5"]).arg(output),
                None => command.args(["-f", "null", "-"]),
            };
        } else {
            command.args(["--preset", "ultrafast", "--owf", "2", "--wpp"]);
            command.args(["--threads", &threads, "--input-res", "416x240"]);
            command.args(frames.iter().flat_map(|frames| ["--frames", frames]));
            command.arg("--input").arg(&self.input);
            command.arg("--output");
            command.arg(output.unwrap_or(Path::new("/dev/null")));
        }
        command
    }
}

/// Runs the selected parts, saves and prints their results. Returns whether every bar was met.
pub fn run(args: &MediaArgs) -> Result<bool> {
    let scratch = tempfile::tempdir()?;
    let cases = cases(&args.examples, scratch.path())?;
    let folder = machine::run_folder(&args.out, "media")?;
    let mut parts = Vec::new();
    for &which in MediaPart::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&which) {
            continue;
        }
        let part = match which {
            MediaPart::Time => time::run(&cases, args.rounds, scratch.path()),
            MediaPart::Misses => misses::run(&cases, args.frames, scratch.path()),
        };
        let part: Part = part.with_context(|| format!("part {which:?}"))?;
        if !args.json {
            machine::print_line(part.lines())?;
        }
        parts.push(part);
    }
    let title = "Real programs on usher-tasks";
    match args.json {
        true => machine::finish_as_json(&folder, title, &parts),
        false => machine::finish(&folder, title, &parts),
    }
}

/// Builds the programs, and generates the input of the encoder.
fn cases(examples: &Path, scratch: &Path) -> Result<Vec<Case>> {
    let ffmpeg = build(examples, "ffmpeg")?;
    let kvazaar = build(examples, "kvazaar")?;
    let clip = scratch.join("clip.yuv");
    output(
        Command::new(examples.join("clip")).arg(&clip).arg("60"),
        "generating the clip",
    )?;
    let stream = |name: &str| examples.join("streams").join(name);
    Ok(vec![
        Case {
            label: "FFmpeg, 1080p",
            programs: ffmpeg.clone(),
            input: stream("VVC_HDR_UHDTV1_OpenGOP_1920x1080_50fps_HLG10_40frames.ts"),
            is_decoder: true,
        },
        Case {
            label: "FFmpeg, 4K",
            programs: ffmpeg,
            input: stream("VVC_UHDTV1_OpenGOP_3840x2160_24fps_SDR_40frames.ts"),
            is_decoder: true,
        },
        Case {
            label: "kvazaar, 60 frames",
            programs: kvazaar,
            input: clip,
            is_decoder: false,
        },
    ])
}

/// Builds a program twice, and returns the paths of the program with its own pool and of the program
/// with usher-tasks.
fn build(examples: &Path, name: &str) -> Result<[PathBuf; 2]> {
    let mut command = Command::new(examples.join("run"));
    let printed = output(command.args([name, "--build"]), &format!("building {name}"))?;
    let path = |label: &str| {
        let mut lines = printed.lines();
        let found = lines.find_map(|line| line.strip_prefix(label));
        let found = found.with_context(|| format!("the build of {name} printed no line '{label}'"));
        Ok::<_, anyhow::Error>(PathBuf::from(found?.trim()))
    };
    Ok([path("own pool:")?, path("usher-tasks:")?])
}

/// Runs a command and returns its standard output. A failure is an error with the last line of the
/// standard error.
fn output(command: &mut Command, doing: &str) -> Result<String> {
    let output = command.output().with_context(|| doing.to_owned())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.trim().lines().last().unwrap_or("no message");
    ensure!(
        output.status.success(),
        "{doing}: {}: {last}",
        output.status
    );
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(is_decoder: bool) -> Case {
        Case {
            label: "a",
            programs: [PathBuf::from("/b/own"), PathBuf::from("/b/usher")],
            input: PathBuf::from("/in"),
            is_decoder,
        }
    }

    fn line(command: &Command) -> String {
        let words = command.get_args().map(|word| word.to_string_lossy());
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn both_pools_get_the_same_arguments() {
        for is_decoder in [true, false] {
            let of = |pool| {
                let command =
                    case(is_decoder).command(&[], pool, 2, Some(3), Some(Path::new("/out")));
                line(&command)
            };
            assert!(of(Pool::Own).contains("/b/own"));
            assert_eq!(of(Pool::Own).replace("own", "usher"), of(Pool::Usher));
            assert_eq!(of(Pool::Usher), of(Pool::Fcfs));
        }
    }

    #[test]
    fn a_failed_build_is_an_error_with_its_last_line() {
        let mut command = Command::new("sh");
        let error = output(
            command.args(["-c", "echo a; echo b >&2; exit 3"]),
            "building x",
        );
        let error = error.unwrap_err().to_string();
        assert!(
            error.starts_with("building x: ") && error.ends_with(": b"),
            "{error}"
        );
    }
}
