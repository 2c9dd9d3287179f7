// SPDX-License-Identifier: GPL-2.0-only
//! Formats an evaluation of `usher sim casas` as tables for the terminal: classes of programs, mean
//! results by scheduler and kind of mix beside the paper's figures, and results at the ends of
//! parameter ranges. Missing values become "–".

use usher_sim::campaign::Scheduler;
use usher_sim::evaluation::{Evaluation, MixKind};

use super::CasasAnswer;
use crate::output::{self, Output, STRONG};

/// All tables.
pub fn table(answer: &CasasAnswer, out: Output) -> String {
    let evaluation = &answer.evaluation;
    let mut text = format!(
        "Simulated: geometric means of the ANTT of mixes of four programs on {}\nGood (G), \
         medium (Y) and poor (R) scalers: {}\n\n{}",
        answer.machine,
        classes(evaluation),
        means(evaluation, out)
    );
    if !answer.ranges.is_empty() {
        text.push_str(
            "\nANTT relative to Linux, with each unpublished parameter at the ends of its \
             range\n\n",
        );
        text.push_str(&ranges(answer, out));
    }
    text.push_str(&format!(
        "\n{:.0} million events were simulated in {:.0} s\n",
        answer.events as f64 / 1e6,
        answer.seconds
    ));
    text
}

fn classes(evaluation: &Evaluation) -> String {
    let class = |program: &usher_sim::evaluation::EvaluatedProgram| {
        let other = program
            .other
            .map_or(String::new(), |other| format!(" or {other:?}"));
        format!("{} {:?}{other}", program.name, program.class)
    };
    let all: Vec<String> = evaluation.programs.iter().map(class).collect();
    all.join(", ")
}

fn number(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.2}"))
}

/// Means by scheduler and kind of mix, with the paper's figures.
fn means(evaluation: &Evaluation, out: Output) -> String {
    let classes = evaluation.classes();
    let mut head = vec![out.paint(STRONG, "SCHEDULER")];
    for kind in MixKind::ALL {
        let count = evaluation.of(kind, &classes).count();
        let name = format!("{} ({count})", kind.name()).to_uppercase();
        head.push(out.paint(STRONG, &name));
    }
    head.extend(["WORST / LINUX", "IN"].map(|title| out.paint(STRONG, title)));
    let mut rows = vec![head];
    for scheduler in Scheduler::PAPER_1 {
        let mut row = vec![scheduler.name().to_owned()];
        row.extend(MixKind::ALL.map(|kind| number(evaluation.mean(scheduler, kind, &classes))));
        let worst = evaluation.worst(scheduler, Scheduler::Linux);
        row.push(number(worst.map(|(_, ratio)| ratio)));
        row.push(worst.map_or(String::new(), |(mix, _)| mix.programs.join(" ")));
        rows.push(row);
    }
    for (name, which) in [("paper: linux", 0), ("paper: casas", 1)] {
        let mut row = vec![name.to_owned()];
        row.extend(MixKind::ALL.map(|kind| {
            let (linux, casas) = kind.paper();
            number(Some([linux, casas][which]))
        }));
        rows.push(row);
    }
    output::columns(&rows)
}

/// Ratios to Linux in every setting.
fn ranges(answer: &CasasAnswer, out: Output) -> String {
    let titles = [
        "SETTING",
        "LINUX",
        "CASAS",
        "USHER",
        "COLD",
        "USHER / ORACLE",
        "WORST USHER",
        "WORST COLD",
        "SAMPLE DEVIATION",
    ];
    let mut rows = vec![titles.map(|title| out.paint(STRONG, title)).to_vec()];
    for evaluation in std::iter::once(&answer.evaluation).chain(&answer.ranges) {
        let classes = evaluation.classes();
        let ratio = |pair| number(evaluation.ratio(pair, MixKind::All, &classes));
        let worst = |scheduler| {
            number(
                evaluation
                    .worst(scheduler, Scheduler::Linux)
                    .map(|(_, r)| r),
            )
        };
        let setting = match evaluation.setting.as_str() {
            "" => "as fitted",
            setting => setting,
        };
        rows.push(vec![
            setting.to_owned(),
            number(evaluation.mean(Scheduler::Linux, MixKind::All, &classes)),
            ratio((Scheduler::Casas, Scheduler::Linux)),
            ratio((Scheduler::Usher, Scheduler::Linux)),
            ratio((Scheduler::UsherCold, Scheduler::Linux)),
            ratio((Scheduler::Usher, Scheduler::OracleLending)),
            worst(Scheduler::Usher),
            worst(Scheduler::UsherCold),
            format!("{:.0} %", 100.0 * evaluation.sample_off()),
        ]);
    }
    output::columns(&rows)
}
