// SPDX-License-Identifier: GPL-2.0-only
//! `usher replay`: decides a recorded run again.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use anyhow::Context;
use serde_json::json;
use usher_control::RecordError;
use usher_policy::Policy;
use usher_report::text;

use crate::failure::{self, Outcome};
use crate::output::Output;

/// Replays what a daemon recorded and checks that it decides the same
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A policy decides from what it is told and nothing else, so the same observations
must give the same decisions, on any machine and at any time. A record that does
not replay is a bug worth reporting, and the record is all that it takes to find it.

Examples:
  usher daemon --record run.jsonl
  usher replay run.jsonl")]
pub struct Args {
    /// A file that `usher daemon --record` wrote
    #[arg(value_name = "FILE")]
    record: PathBuf,
}

/// Replays it.
pub fn run(args: &Args, out: Output) -> Outcome {
    let path = args.record.display();
    let file = File::open(&args.record).with_context(|| format!("opening the record '{path}'"))?;
    let mut unknown = None;
    let steps = usher_control::replay(BufReader::new(file), |head| {
        // Simulations record policies to compare with, too.
        usher_sim::fuzz::policy(&head.policy, &head.topology).unwrap_or_else(|| {
            unknown = Some(head.policy.clone());
            Box::new(Nobody)
        })
    });
    if let Some(policy) = unknown {
        anyhow::bail!("replaying '{path}': this version has no policy '{policy}'");
    }
    if let Err(RecordError::Differs { step, decisions }) = &steps {
        let (then, now) = &**decisions;
        out.json(&json!({ "step": step, "recorded": then, "now": now }))?;
    }
    let steps = match steps {
        Err(RecordError::CutShort { steps }) => {
            failure::complain(&format!(
                "the last line of '{path}' is cut short and was left out"
            ));
            Ok(steps)
        }
        steps => steps,
    };
    let steps = steps.with_context(|| format!("replaying '{path}'"))?;
    out.answer(&json!({ "steps": steps, "same": true }), || {
        format!("{}, all the same", text::count(steps, "decision"))
    })?;
    Ok(0)
}

/// Stands in for a policy that is not there; what it decides is not used.
struct Nobody;

impl Policy for Nobody {
    fn name(&self) -> &'static str {
        "nobody"
    }

    fn decide(&mut self, _: &usher_model::Observation) -> usher_model::Decision {
        usher_model::Decision::default()
    }
}
