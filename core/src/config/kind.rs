//! Types of settings: how a value is written and which values are in bounds.

use super::connections::Overrides;
use crate::drive::spec::DriveExpr;

/// Type and bounds of a setting.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Kind {
    /// A whole number of at most 32 bits.
    Int {
        /// Least.
        min: i32,
        /// Most.
        max: i32,
    },
    /// A whole number.
    Long {
        /// Least.
        min: i64,
        /// Most.
        max: i64,
    },
    /// Bytes; a node's settings may have a unit: `64KiB`, `1GiB`.
    Bytes {
        /// Least.
        min: i64,
        /// Most.
        max: i64,
    },
    /// Milliseconds; a node's settings may have a unit: `500ms`, `60s`, `10min`, `24h`, `7d`.
    Millis {
        /// Least.
        min: i64,
        /// Most.
        max: i64,
    },
    /// A fraction.
    Double {
        /// Least.
        min: f64,
        /// Most.
        max: f64,
    },
    /// `true` or `false`.
    Bool,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A comma-separated list; of these words, if there are any.
    List(&'static [&'static str]),
    /// Any text.
    Text,
    /// A drive expression.
    Drive,
    /// `ADDRESS:COUNT`, separated by commas.
    Addresses,
}

const BYTE_UNITS: [(&str, i64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
const TIME_UNITS: [(&str, i64); 5] =
    [("ms", 1), ("min", 60_000), ("s", 1000), ("h", 3_600_000), ("d", 86_400_000)];

impl Kind {
    /// Whether `value` is written right and in bounds.
    ///
    /// Errors: what would be right.
    pub fn check(self, value: &str) -> Result<(), String> {
        match self {
            Kind::Int { .. } | Kind::Long { .. } | Kind::Bytes { .. } | Kind::Millis { .. } => {
                self.number(value).map(|_| ())
            }
            Kind::Double { min, max } => {
                let number: f64 =
                    value.trim().parse().map_err(|_| "Not a number of type DOUBLE".to_owned())?;
                if number.is_nan() || number < min {
                    return Err(format!("Value must be at least {min}"));
                }
                if number > max { Err(format!("Value must be no more than {max}")) } else { Ok(()) }
            }
            Kind::Bool => flag(value).map(|_| ()),
            Kind::Choice(words) => one_of(value, words),
            Kind::List([]) => Ok(()),
            Kind::List(_) if value.trim().is_empty() => Ok(()),
            // An item that is named twice counts once (KIP-1161).
            Kind::List(words) => value.split(',').try_for_each(|item| match item.trim() {
                "" => Err("Values of the list must not be empty".to_owned()),
                item => one_of(item, words),
            }),
            Kind::Text => Ok(()),
            Kind::Drive => drive(value).map(|_| ()),
            Kind::Addresses => Overrides::of(value).map(|_| ()),
        }
    }

    /// A value that was taken, as it is shown: a number or a word as it was understood, and of a list of words each once, as
    /// Kafka shows them (KIP-1161).
    pub fn shown(self, value: &str) -> String {
        match self {
            Kind::Int { .. } | Kind::Long { .. } | Kind::Bytes { .. } | Kind::Millis { .. } => {
                return value.trim().parse().map_or_else(|_| value.to_owned(), |n: i64| n.to_string());
            }
            Kind::Bool => return value.trim().to_ascii_lowercase(),
            Kind::Choice(_) => return value.trim().to_owned(),
            Kind::Double { .. } | Kind::List([]) | Kind::Text | Kind::Drive | Kind::Addresses => {
                return value.to_owned();
            }
            Kind::List([_, ..]) => {}
        }
        let mut once: Vec<&str> = Vec::new();
        for item in items(value) {
            if !once.contains(&item) {
                once.push(item);
            }
        }
        once.join(",")
    }

    /// A whole number as clients write it, without a unit.
    ///
    /// Errors: what would be right; also for kinds that are no whole numbers.
    pub fn number(self, value: &str) -> Result<i64, String> {
        let (kind, min, max) = match self {
            Kind::Int { min, max } => ("INT", i64::from(min), i64::from(max)),
            Kind::Long { min, max } | Kind::Millis { min, max } | Kind::Bytes { min, max } => {
                ("LONG", min, max)
            }
            Kind::Double { .. }
            | Kind::Bool
            | Kind::Choice(_)
            | Kind::List(_)
            | Kind::Text
            | Kind::Drive
            | Kind::Addresses => {
                return Err("Not a whole number".to_owned());
            }
        };
        let number: i64 = value.trim().parse().map_err(|_| format!("Not a number of type {kind}"))?;
        if number < min {
            return Err(format!("Value must be at least {min}"));
        }
        if number > max { Err(format!("Value must be no more than {max}")) } else { Ok(number) }
    }

    /// A whole number that may have a unit.
    ///
    /// Errors: what would be right.
    pub fn number_with_unit(self, value: &str) -> Result<i64, String> {
        let units: &[(&str, i64)] = match self {
            Kind::Bytes { .. } => &BYTE_UNITS,
            Kind::Millis { .. } => &TIME_UNITS,
            _ => &[],
        };
        let found = units.iter().find_map(|(unit, times)| Some((value.trim().strip_suffix(unit)?, times)));
        let Some((digits, times)) = found else {
            let known: Vec<&str> = units.iter().map(|(unit, _)| *unit).collect();
            return self.number(value).map_err(|why| match known.is_empty() || !why.starts_with("Not a") {
                true => why,
                false => format!("Not a whole number, or one with a unit ({})", known.join(", ")),
            });
        };
        let number: i64 =
            digits.trim_end().parse().map_err(|_| "Not a whole number with a unit".to_owned())?;
        let number = number.checked_mul(*times).ok_or_else(|| "Value is too large".to_owned())?;
        self.number(&number.to_string())
    }
}

/// `true` or `false`, in any case.
pub(super) fn flag(value: &str) -> Result<bool, String> {
    match value.trim() {
        v if v.eq_ignore_ascii_case("true") => Ok(true),
        v if v.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err("Expected value to be either true or false".to_owned()),
    }
}

/// A drive expression.
pub(super) fn drive(value: &str) -> Result<DriveExpr, String> {
    value.parse().map_err(|e: <DriveExpr as std::str::FromStr>::Err| e.to_string())
}

/// The items of a list value.
pub(super) fn items(value: &str) -> Vec<&str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty()).collect()
}

pub(super) fn one_of(value: &str, words: &[&str]) -> Result<(), String> {
    if words.contains(&value.trim()) {
        return Ok(());
    }
    Err(format!("String must be one of: {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: Kind = Kind::Bytes { min: 65_536, max: i64::MAX };
    const MILLIS: Kind = Kind::Millis { min: 1, max: i64::MAX };

    #[test]
    fn units_are_understood() {
        for (value, number) in
            [("64KiB", 65_536), ("1 MiB", 1 << 20), ("2GiB", 2 << 30), ("1TiB", 1 << 40), (" 70000 ", 70_000)]
        {
            assert_eq!(BYTES.number_with_unit(value), Ok(number), "{value}");
        }
        let times =
            [("5ms", 5), ("60s", 60_000), ("10min", 600_000), ("24h", 86_400_000), ("7d", 604_800_000)];
        for (value, number) in times {
            assert_eq!(MILLIS.number_with_unit(value), Ok(number), "{value}");
        }
    }

    #[test]
    fn what_a_list_names_twice_is_taken_and_shown_once() {
        let list = Kind::List(&["a", "b"]);
        for (value, shown) in [("a,a", "a"), (" b, a ,b", "b,a"), ("a", "a"), ("", "")] {
            assert_eq!((list.check(value), list.shown(value)), (Ok(()), shown.to_owned()), "{value}");
        }
        assert_eq!(Kind::Text.shown("a, a"), "a, a");
        for value in ["5", " 5 ", "+5", "05"] {
            assert_eq!(MILLIS.shown(value), "5", "{value}");
        }
        assert_eq!(Kind::Choice(&["gzip"]).shown(" gzip "), "gzip");
        assert_eq!((Kind::Bool.shown("TRUE"), Kind::Bool.shown(" False ")), ("true".into(), "false".into()));
    }

    #[test]
    fn what_is_no_number_or_out_of_bounds_says_what_would_be_right() {
        let unit = |kind: Kind, value| kind.number_with_unit(value).unwrap_err();
        assert_eq!(unit(BYTES, "63KiB"), "Value must be at least 65536");
        assert_eq!(unit(BYTES, "64kb"), "Not a whole number, or one with a unit (KiB, MiB, GiB, TiB)");
        assert_eq!(unit(BYTES, "99999999TiB"), "Value is too large");
        assert_eq!(unit(MILLIS, "x s"), "Not a whole number with a unit");
        assert_eq!(unit(MILLIS, ""), "Not a whole number, or one with a unit (ms, min, s, h, d)");
        let int = Kind::Int { min: 1, max: 3 };
        assert_eq!(int.number("4"), Err("Value must be no more than 3".to_owned()));
        assert_eq!(int.number("1KiB"), Err("Not a number of type INT".to_owned()));
        assert_eq!(Kind::Bool.check("yes"), Err("Expected value to be either true or false".to_owned()));
        assert_eq!(Kind::List(&["a", "b"]).check("a, c"), Err("String must be one of: a, b".to_owned()));
        for empty in ["a ,b,", ",a", "a,,b", ","] {
            let why = "Values of the list must not be empty";
            assert_eq!(Kind::List(&["a", "b"]).check(empty), Err(why.to_owned()), "{empty}");
        }
        assert!(Kind::Double { min: 0.0, max: 1.0 }.check("NaN").is_err());
        assert!(Kind::Drive.check("disc").is_err());
        assert_eq!(Kind::Drive.check("quorum(3, write=2)"), Ok(()));
    }
}
