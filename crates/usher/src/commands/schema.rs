// SPDX-License-Identifier: GPL-2.0-only
//! `usher schema`: prints the JSON Schema of a command's answer with `--json`, or the list of
//! commands that have such an answer. The schemas come from `crate::answers`.

use anyhow::bail;
use schemars::JsonSchema;
use serde::Serialize;

use crate::answers::ANSWERS;
use crate::failure::Outcome;
use crate::output::Output;

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
        let similar = usher_model::closest_name(&wanted, names());
        let tip = similar.map_or_else(String::new, |name| format!("; similar: '{name}'"));
        bail!("no command '{wanted}' has an answer in JSON{tip}; see 'usher schema'");
    };
    let schema = (found.schema)();
    out.text(&serde_json::to_string_pretty(&schema)?)?;
    Ok(0)
}
