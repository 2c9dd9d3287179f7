// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `gain`: what fewer switches between address spaces should save a machine, from
//! how many there are in the guest and what each costs here.

use anyhow::Result;
use usher_report::text;

use super::lab::Measured;
use super::rival::Rival;
use super::{spaces, switches};
use crate::bars::{Part, Table};

const NAME: &str = "gain";
const TITLE: &str = "What fewer switches between address spaces should save";

/// From the part `switches` and what was measured of `spaces`; `None` where one of them
/// is not there.
pub fn part(switches: &Part, measured: &Measured) -> Result<Option<Part>> {
    let costs = switches::costs(&switches.raw);
    let rates = spaces::rates(measured);
    let rate = |rival: &Rival| {
        let found = rates.iter().find(|(of, _)| of == rival);
        found.map(|(_, rate)| *rate)
    };
    let (Some(eevdf), Some(ours)) = (rate(&Rival::Eevdf), rate(&Rival::Usher)) else {
        return Ok(None);
    };
    if costs.is_empty() {
        return Ok(None);
    }
    let saved = eevdf - ours;
    let row = |(bytes, cost_ns): &(usize, f64)| {
        vec![
            text::bytes(*bytes as u64),
            text::number(*cost_ns, 0),
            format!("{} %", text::number(saved * cost_ns / 1e7, 3)),
        ]
    };
    let mut part = Part::new(NAME, TITLE);
    let head = ["memory of each", "a switch, ns", "saved of a CPU's time"];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: costs.iter().map(row).collect(),
    }];
    part.notes = vec![
        format!(
            "EEVDF switches address spaces {eevdf:.0} times a second of a CPU under the load of \
             'spaces', ours {ours:.0} times; what that saves is the difference times what the \
             part 'switches' measured on this machine. Not measured as a whole: no emulator \
             has caches, and this machine's kernel runs no sched_ext."
        ),
        "Paper 4 measured a gain of 4.9 to 11.1 %. Where the quartiles of a cost lie on both \
         sides of 0, it is lost in this machine's noise."
            .to_owned(),
    ];
    part.raw = serde_json::json!({ "eevdf_a_second": eevdf, "ours_a_second": ours });
    Ok(Some(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::rows::tests::sample;

    #[test]
    fn what_is_saved_is_switches_times_their_cost() {
        let of = |rival, count| sample(rival, spaces::NAME, 7, [count, count]);
        let mut measured = Measured {
            samples: vec![of(Rival::Eevdf, 4400), of(Rival::Usher, 400)],
            left_out: vec![],
        };
        let mut switches = Part::new(switches::NAME, "");
        let pair = serde_json::json!({ "threads_ns": 1000.0, "processes_ns": 3000.0 });
        switches.raw = serde_json::json!([[4096, [pair]]]);
        let part = part(&switches, &measured).unwrap().unwrap();
        // 1000 a second, of 2 us each.
        assert_eq!(part.tables[0].rows[0][1..], ["2000", "0.200 %"]);
        measured.samples.pop();
        assert!(super::part(&switches, &measured).unwrap().is_none());
    }
}
