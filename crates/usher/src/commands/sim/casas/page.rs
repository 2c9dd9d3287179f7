// SPDX-License-Identifier: GPL-2.0-only
//! Formats an evaluation of `usher sim casas` as a report page: sample mix, crowding, scalability,
//! means by kind of mix, all mixes, smallest gains and ranges of free parameters, each with the
//! paper's figures for comparison.
//!
//! The page lists at most twenty mixes with Usher's smallest gains. Missing values are left out of
//! figures and become "–" in tables. The cost is proportional to the number of mixes, times the
//! number of schedulers, plus the sort of the mixes.

use usher_model::{Curve, CurvePoint};
use usher_report::figure::{CurveFigure, Dot, DotRow, Dots, Series, curve_panel, dots};
use usher_report::html::{Cell, Item, Section, bench_page};
use usher_sim::campaign::{MixRow, Scheduler};
use usher_sim::evaluation::{EvaluatedProgram, Evaluation, MixKind, SAMPLE_OFF_MAX};
use usher_sim::setup::FREE_PARAMETERS;

use super::CasasAnswer;

/// The whole page.
pub fn page(answer: &CasasAnswer) -> String {
    let evaluation = &answer.evaluation;
    let mut sections = vec![
        about(answer),
        sample(evaluation),
        crowded(evaluation),
        scalability(evaluation),
        classes(evaluation),
        of_kind(
            evaluation,
            MixKind::Yyrr,
            "Figure 8: two medium and two poor scalers",
        ),
        of_kind(
            evaluation,
            MixKind::Ggyy,
            "Figure 9: two good and two medium scalers",
        ),
        smallest_gains(evaluation),
    ];
    if !answer.ranges.is_empty() {
        sections.push(ranges(answer));
    }
    bench_page("Evaluation of paper 1 (CaSAS), simulated", None, &sections)
}

fn text(text: impl Into<String>) -> Item {
    Item::Text(text.into())
}

fn about(answer: &CasasAnswer) -> Section {
    Section {
        title: "About this page".to_owned(),
        items: vec![
            Item::Verdict("All figures on this page are simulated; none was measured.".to_owned()),
            text(format!(
                "Mixes of four of ten PARSEC programs on a simulated machine ({}), as in the evaluation of CaSAS. \
                CaSAS and Usher are the shipped policies, run by the shipped control loop; the kernel, the programs and the memory are models. \
                The models of the programs are fitted to their published speed-ups when alone (no speed-up of x264 is published; its model is assumed). The bandwidth of a die and the memory traffic of ferret and streamcluster are fitted to the paper's sample mix. All other figures are predictions.",
                answer.machine
            )),
            text(format!(
                "{:.0} million events were simulated in {:.0} s.",
                answer.events as f64 / 1e6,
                answer.seconds
            )),
        ],
    }
}

fn series(name: &str, class: &str) -> Series {
    Series {
        name: name.to_owned(),
        class: class.to_owned(),
        hollow: false,
    }
}

fn paper(name: &str, class: &str) -> Series {
    Series {
        hollow: true,
        ..series(name, class)
    }
}

fn sample(evaluation: &Evaluation) -> Section {
    let row = |sample: &usher_sim::sample::SampleMixResult| {
        let simulated = Dot {
            series: 0,
            value: sample.antt,
        };
        let paper = sample.paper.map(|value| Dot { series: 1, value });
        DotRow {
            label: sample.name.clone(),
            dots: [Some(simulated), paper].into_iter().flatten().collect(),
        }
    };
    let figure = Dots {
        title: "ANTT of the sample mix".to_owned(),
        axis: "ANTT".to_owned(),
        marks: vec![1.0],
        series: vec![series("simulated", "q4"), paper("paper", "q0")],
        rows: evaluation.sample.iter().map(row).collect(),
    };
    let mut head = vec!["Scheduler".to_owned()];
    head.extend(usher_sim::sample::PROGRAMS.map(|name| format!("NTT {name}")));
    head.extend(["ANTT".to_owned(), "paper".to_owned()]);
    let cells = |sample: &usher_sim::sample::SampleMixResult| {
        let mut row = vec![Cell::Text(sample.name.clone())];
        row.extend(sample.ntt.iter().map(|&ntt| Cell::Number(Some(ntt), 2)));
        row.push(Cell::Number(Some(sample.antt), 2));
        row.push(Cell::Number(sample.paper, 2));
        row
    };
    Section {
        title: "Figure 2: canneal, dedup, ferret and streamcluster".to_owned(),
        items: vec![
            text(
                "Under space sharing, canneal, dedup, ferret and streamcluster run on 12, 12, 18 \
                 and 6 cores, as in the paper.",
            ),
            Item::Figure(dots(&figure).into_string()),
            Item::Table {
                head,
                rows: evaluation.sample.iter().map(cells).collect(),
            },
        ],
    }
}

fn crowded(evaluation: &Evaluation) -> Section {
    let row = |program: &EvaluatedProgram| DotRow {
        label: program.name.clone(),
        dots: vec![Dot {
            series: 0,
            value: program.crowded,
        }],
    };
    let figure = Dots {
        title: "Slowdown by 48 threads on 6 cores".to_owned(),
        axis: "time of a program with 48 threads on 6 cores / with 6 threads on 6 cores".to_owned(),
        marks: vec![1.0, 1.1],
        series: vec![series("simulated", "q4")],
        rows: evaluation.programs.iter().map(row).collect(),
    };
    Section {
        title: "Figure 5: more threads than cores".to_owned(),
        items: vec![
            text(
                "The paper reports that 48 threads on 6 cores are at most 10 % slower than 6 \
                 threads, except for streamcluster. No model parameter was fitted to the \
                 slow-downs in this figure.",
            ),
            Item::Figure(dots(&figure).into_string()),
        ],
    }
}

fn scalability(evaluation: &Evaluation) -> Section {
    let panel = |program: &EvaluatedProgram| {
        let point = |&(cores, rate): &(f64, f64)| CurvePoint {
            cores,
            rate,
            relative_error: 0.0,
            busy_cpus: None,
        };
        // Speed-ups are relative to the sequential program on one core.
        let points = std::iter::once(&(1.0, 1.0)).chain(&program.speedup);
        let curve = Curve::new(points.map(point).collect()).ok()?;
        let figure = CurveFigure {
            title: &format!("{} {:?}", program.name, program.class),
            class: match program.class {
                usher_sim::campaign::ScalabilityClass::G => "p2",
                usher_sim::campaign::ScalabilityClass::Y => "p1",
                usher_sim::campaign::ScalabilityClass::R => "p5",
            },
            ..CurveFigure::default()
        };
        Some(curve_panel(&curve, &figure, 250.0, 200.0).into_string())
    };
    Section {
        title: "Figure 7: scalability".to_owned(),
        items: vec![
            text(
                "Speed of programs with 48 threads on 6 to 48 cores, relative to the sequential \
                 program on one core. The best speed-up determines the class of a program: G \
                 (good) from 30 % of the number of cores, R (poor) below 15 %, Y (medium) \
                 between them.",
            ),
            Item::Panels(evaluation.programs.iter().filter_map(panel).collect()),
        ],
    }
}

/// Geometric means by kind of mix.
fn classes(evaluation: &Evaluation) -> Section {
    let classes = evaluation.classes();
    let mut head = vec!["Scheduler".to_owned()];
    head.extend(MixKind::ALL.map(|kind| {
        format!(
            "{} ({})",
            kind.name(),
            evaluation.of(kind, &classes).count()
        )
    }));
    let row = |scheduler: Scheduler| {
        let mean = |kind| Cell::Number(evaluation.mean(scheduler, kind, &classes), 2);
        let mut row = vec![Cell::Text(scheduler.name().to_owned())];
        row.extend(MixKind::ALL.map(mean));
        row
    };
    let mut rows: Vec<_> = Scheduler::PAPER_1.map(row).into();
    for (name, pick) in [("paper: Linux", 0), ("paper: CaSAS", 1)] {
        let mut row = vec![Cell::Text(name.to_owned())];
        row.extend(
            MixKind::ALL.map(|kind| Cell::Number(Some(<[f64; 2]>::from(kind.paper())[pick]), 2)),
        );
        rows.push(row);
    }
    let mut items = vec![
        text("Geometric means of the ANTT over all mixes and over the mixes of each class."),
        Item::Table { head, rows },
    ];
    items.extend(reclassified(evaluation));
    Section {
        title: "All mixes".to_owned(),
        items,
    }
}

/// Usher and CaSAS relative to Linux, with borderline programs reclassified to the other class.
fn reclassified(evaluation: &Evaluation) -> Option<Item> {
    let others = evaluation.other_classes();
    let mut head = vec!["Changed class".to_owned()];
    for name in ["CaSAS", "Usher"] {
        head.extend(
            MixKind::ALL[1..]
                .iter()
                .map(|kind| format!("{name} / Linux {}", kind.name())),
        );
    }
    let row = |(name, classes): &(String, _)| {
        let mut row = vec![Cell::Text(name.clone())];
        for scheduler in [Scheduler::Casas, Scheduler::Usher] {
            let ratio =
                |kind: &MixKind| evaluation.ratio((scheduler, Scheduler::Linux), *kind, classes);
            row.extend(
                MixKind::ALL[1..]
                    .iter()
                    .map(|kind| Cell::Number(ratio(kind), 2)),
            );
        }
        row
    };
    (!others.is_empty()).then(|| Item::Table {
        head,
        rows: others.iter().map(row).collect(),
    })
}

/// One row per mix with Linux, CaSAS and Usher.
fn mixes(title: &str, rows: &[&MixRow]) -> Item {
    const SHOWN: [(Scheduler, &str, &str); 4] = [
        (Scheduler::Linux, "Linux", "q0"),
        (Scheduler::Casas, "CaSAS", "q3"),
        (Scheduler::UsherCold, "Usher, cold", "q5"),
        (Scheduler::Usher, "Usher", "q4"),
    ];
    let dot = |row: &MixRow, index: usize| {
        let value = *row.antt.get(&SHOWN[index].0)?;
        Some(Dot {
            series: index,
            value,
        })
    };
    let row = |row: &&MixRow| DotRow {
        label: row.programs.join(" "),
        dots: (0..SHOWN.len())
            .filter_map(|index| dot(row, index))
            .collect(),
    };
    let figure = Dots {
        title: title.to_owned(),
        axis: "ANTT".to_owned(),
        marks: vec![1.0],
        series: SHOWN.map(|(_, name, class)| series(name, class)).into(),
        rows: rows.iter().map(row).collect(),
    };
    Item::Figure(dots(&figure).into_string())
}

fn of_kind(evaluation: &Evaluation, kind: MixKind, title: &str) -> Section {
    let classes = evaluation.classes();
    let rows: Vec<&MixRow> = evaluation.of(kind, &classes).collect();
    if rows.is_empty() {
        return Section {
            title: title.to_owned(),
            items: vec![text("No simulated mix has programs of these classes.")],
        };
    }
    let mean = |scheduler| {
        let mean = evaluation.mean(scheduler, kind, &classes);
        mean.map_or("–".to_owned(), |mean| format!("{mean:.2}"))
    };
    let (linux, casas) = kind.paper();
    Section {
        title: title.to_owned(),
        items: vec![
            text(format!(
                "Geometric means of the ANTT: Linux {}, CaSAS {}, Usher {}; the paper reports \
                 {linux:.2} for Linux and {casas:.2} for CaSAS.",
                mean(Scheduler::Linux),
                mean(Scheduler::Casas),
                mean(Scheduler::Usher)
            )),
            mixes(title, &rows),
        ],
    }
}

/// The mixes with Usher's highest ANTT relative to Linux.
fn smallest_gains(evaluation: &Evaluation) -> Section {
    let ratio = |row: &MixRow| {
        row.antt
            .get(&Scheduler::Usher)
            .zip(row.antt.get(&Scheduler::Linux))
            .map(|(u, l)| u / l)
    };
    let mut rows: Vec<&MixRow> = evaluation
        .mixes
        .iter()
        .filter(|row| ratio(row).is_some())
        .collect();
    rows.sort_by(|a, b| {
        ratio(b)
            .partial_cmp(&ratio(a))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    rows.truncate(20);
    Section {
        title: "Mixes with Usher's smallest gain over Linux".to_owned(),
        items: vec![
            text("The twenty mixes in which Usher's ANTT is highest relative to that of Linux."),
            mixes("Mixes with Usher's smallest gain over Linux", &rows),
        ],
    }
}

/// Ratios to Linux over the ranges of the free parameters.
fn ranges(answer: &CasasAnswer) -> Section {
    let row = |evaluation: &Evaluation| {
        let classes = evaluation.classes();
        let ratio =
            |scheduler| evaluation.ratio((scheduler, Scheduler::Linux), MixKind::All, &classes);
        let worst = evaluation
            .worst(Scheduler::Usher, Scheduler::Linux)
            .map(|(_, ratio)| ratio);
        let values = [
            ratio(Scheduler::Casas),
            ratio(Scheduler::UsherCold),
            ratio(Scheduler::Usher),
            worst,
        ];
        let dots = values.into_iter().enumerate();
        DotRow {
            label: match evaluation.sample_off() <= SAMPLE_OFF_MAX {
                true => evaluation.setting.clone(),
                false => format!("({}: not the paper's machine)", evaluation.setting),
            },
            dots: dots
                .filter_map(|(series, value)| {
                    Some(Dot {
                        series,
                        value: value?,
                    })
                })
                .collect(),
        }
    };
    let figure = Dots {
        title: "ANTT relative to Linux over the ranges of the parameters".to_owned(),
        axis: "geometric mean of the ANTT / geometric mean under Linux".to_owned(),
        marks: vec![0.8, 1.0],
        series: vec![
            series("CaSAS", "q3"),
            series("Usher, cold", "q5"),
            series("Usher", "q4"),
            paper("Usher, worst mix", "q4"),
        ],
        rows: answer.ranges.iter().map(row).collect(),
    };
    let parameter = |parameter: &usher_sim::setup::FreeParameter| {
        vec![
            Cell::from(parameter.name),
            Cell::Text(format!("{} to {}", parameter.range.0, parameter.range.1)),
            Cell::from(parameter.what),
        ]
    };
    Section {
        title: "Free parameters".to_owned(),
        items: vec![
            text(
                "The values of the model parameters in this figure are not published. Every \
                 seventh mix was simulated with each parameter at both ends of its range, while \
                 the other parameters kept their fitted values. A setting in which the sample mix \
                 deviates by more than 20 % from the paper's figures does not represent the \
                 paper's machine; the name of such a setting is in parentheses.",
            ),
            Item::Figure(dots(&figure).into_string()),
            Item::Table {
                head: ["Parameter", "Range", "Meaning"].map(str::to_owned).into(),
                rows: FREE_PARAMETERS.iter().map(parameter).collect(),
            },
        ],
    }
}
