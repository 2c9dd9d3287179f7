// SPDX-License-Identifier: GPL-2.0-only
//! `usher replay`: feeds the recorded observations of a daemon to the policy again and checks that
//! every decision is the same.
//!
//! The first decision that differs is printed beside the recorded one, and the command fails. An
//! incomplete last line, as a killed daemon leaves it, is reported and ignored.

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

/// Replays a record of a daemon and checks that the decisions are the same
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A policy decides only by its observations, so the same observations must give the same
decisions, on any machine and at any time. A record that does not replay shows a bug:
report it, with the record, which is sufficient to find the cause.

Examples:
  usher daemon --record run.jsonl
  usher replay run.jsonl")]
pub struct Args {
    /// A file written by `usher daemon --record`
    #[arg(value_name = "FILE")]
    record: PathBuf,
}

/// Replays the record.
pub fn run(args: &Args, out: Output) -> Outcome {
    let path = args.record.display();
    let file = File::open(&args.record).with_context(|| format!("opening the record '{path}'"))?;
    let mut unknown = None;
    let steps = usher_control::replay(BufReader::new(file), |head| {
        // Simulations also record the policies that they compare with.
        usher_sim::fuzz::policy(&head.policy, &head.topology).unwrap_or_else(|| {
            unknown = Some(head.policy.clone());
            Box::new(NoPolicy)
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
            failure::print_error(&format!(
                "the last line of '{path}' is incomplete and was ignored"
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

/// Stands in for a missing policy; its decisions are not used.
struct NoPolicy;

impl Policy for NoPolicy {
    fn name(&self) -> &'static str {
        "none"
    }

    fn decide(&mut self, _: &usher_model::Observation) -> usher_model::Decision {
        usher_model::Decision::default()
    }
}
