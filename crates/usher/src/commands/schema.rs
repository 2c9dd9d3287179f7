// SPDX-License-Identifier: GPL-2.0-only
//! `usher schema`: prints the JSON Schema of a command's answer with `--json`, or the list of
//! commands that have such an answer ([`ANSWERS`]).

use anyhow::bail;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use usher_policy::planfile::PlanOutput;
use usher_store::jobs::JobRecord;

use crate::answers::{
    self, AttachAnswer, BackgroundAnswer, CurveAnswer, DetachAnswer, ExplainAnswer, ExportAnswer,
    FuzzAnswer, ImportAnswer, MixAnswer, ProfileList, Profiles, RemoveAnswer, ReplayAnswer,
    SchedSetAnswer, SchedStartAnswer, SimMixAnswer, StatusAnswer, StoppedDaemon, UndoAnswer,
    WaitAnswer, WrittenPages,
};
use crate::api;
use crate::commands::{advise, doctor, sched, sim, slurm, topo};
use crate::failure::Outcome;
use crate::output::Output;

/// A command with a JSON answer.
pub struct CommandAnswer {
    /// The words that select the command.
    pub command: &'static str,
    /// Returns the schema of the answer.
    pub schema: fn() -> Schema,
}

const fn answer<T: JsonSchema>(command: &'static str) -> CommandAnswer {
    CommandAnswer {
        command,
        schema: answers::schema::<T>,
    }
}

/// All commands with a JSON answer.
pub const ANSWERS: [CommandAnswer; 40] = [
    answer::<AttachAnswer>("attach"),
    answer::<advise::AdviseAnswer<'_>>("advise"),
    answer::<BackgroundAnswer>("bg --attach"),
    answer::<DetachAnswer>("detach"),
    answer::<WaitAnswer>("wait"),
    answer::<StatusAnswer>("status"),
    answer::<StatusAnswer>("top"),
    answer::<ExplainAnswer>("explain"),
    answer::<topo::TopoAnswer<'_>>("topo"),
    answer::<doctor::DoctorReport>("doctor"),
    answer::<CurveAnswer>("profile"),
    answer::<ProfileList>("profile list"),
    answer::<Profiles>("profile show"),
    answer::<RemoveAnswer>("profile rm"),
    answer::<ExportAnswer>("profile export"),
    answer::<ImportAnswer>("profile import"),
    answer::<PlanOutput>("plan"),
    answer::<SchedStartAnswer>("sched start"),
    answer::<StoppedDaemon>("sched stop"),
    answer::<sched::StatusAnswer>("sched status"),
    answer::<SchedSetAnswer>("sched set"),
    answer::<sched::StatsAnswer>("sched stats"),
    answer::<sched::SchedExplainAnswer>("sched explain"),
    answer::<SimMixAnswer>("sim mix"),
    answer::<sim::CasasAnswer>("sim casas"),
    answer::<sim::SmtAnswer>("sim smt"),
    answer::<sim::ProfilesAnswer>("sim profiles"),
    answer::<FuzzAnswer>("sim fuzz"),
    answer::<sim::SimAdviseAnswer>("sim advise"),
    answer::<sim::SlurmAnswer>("sim slurm"),
    answer::<JobRecord>("slurm export"),
    answer::<slurm::MergeAnswer>("slurm merge"),
    answer::<slurm::SlurmReport>("slurm report"),
    answer::<MixAnswer>("mix"),
    answer::<api::Reload_Reply>("daemon reload"),
    answer::<StoppedDaemon>("daemon stop"),
    answer::<UndoAnswer>("undo"),
    answer::<ReplayAnswer>("replay"),
    answer::<WrittenPages>("man"),
    answer::<SchemaList>("schema"),
];

/// Prints the JSON Schema of a command's answer with --json
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without COMMAND, the commands with such an answer are listed. The page json.md of the
documentation states which changes of the answers a later version may contain.

Examples:
  usher schema
  usher schema status
  usher schema sched explain > sched-explain.schema.json")]
pub struct Args {
    /// Words of the command, such as `profile list`
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

/// The commands that have a schema.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SchemaList {
    /// The words of each command.
    commands: Vec<&'static str>,
}

/// Prints the schema or the list.
pub fn run(args: &Args, out: Output) -> Outcome {
    let names = || ANSWERS.iter().map(|one| one.command);
    if args.command.is_empty() {
        let list = SchemaList {
            commands: names().collect(),
        };
        out.answer(&list, || list.commands.join("\n"))?;
        return Ok(0);
    }
    let wanted = args.command.join(" ");
    let Some(found) = ANSWERS.iter().find(|one| one.command == wanted) else {
        bail!(unknown(&wanted));
    };
    let schema = (found.schema)();
    out.text(&serde_json::to_string_pretty(&schema)?)?;
    Ok(0)
}

/// Returns the error of a command without a schema. If the command has subcommands with a schema,
/// the error names them.
fn unknown(wanted: &str) -> String {
    let names = || ANSWERS.iter().map(|one| one.command);
    let begin = format!("{wanted} ");
    let below: Vec<String> = names()
        .filter(|name| name.starts_with(&begin))
        .map(|name| format!("'{name}'"))
        .collect();
    let tip = match usher_model::closest_name(wanted, names()) {
        _ if !below.is_empty() => format!("; its subcommands with a schema: {}", below.join(", ")),
        Some(name) => format!("; similar: '{name}'"),
        None => String::new(),
    };
    format!("there is no schema for the command '{wanted}'{tip}; 'usher schema' lists all")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands without an answer on standard output.
    const OTHERS: [&str; 4] = ["run", "bg", "daemon", "completions"];

    fn leaves(command: &clap::Command, words: &str, found: &mut Vec<String>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let name = format!("{words}{}", sub.get_name());
            leaves(sub, &format!("{name} "), found);
            if !sub.is_subcommand_required_set() {
                found.push(name);
            }
        }
    }

    #[test]
    fn a_command_with_subcommands_gets_their_names() {
        let text = unknown("sched");
        assert!(
            text.contains("'sched start', 'sched stop', 'sched status'"),
            "{text}"
        );
        let text = unknown("daemon");
        assert!(text.contains("'daemon reload', 'daemon stop'"), "{text}");
        assert!(unknown("sim advis").contains("similar: 'sim advise'"));
        assert!(!unknown("zzz").contains("similar"));
    }

    #[test]
    fn every_visible_command_has_a_schema() {
        let mut commands = Vec::new();
        leaves(&crate::cli::visible_command(), "", &mut commands);
        assert!(commands.len() > 30, "{commands:?}");
        for command in commands {
            let has_schema = ANSWERS.iter().any(|one| one.command == command);
            assert_ne!(has_schema, OTHERS.contains(&command.as_str()), "{command}");
        }
    }
}
