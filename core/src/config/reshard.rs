//! Settings of splits and merges by load: how far they go and what they aim at. What follows from them is decided in
//! `reshard::decide`.

/// What becomes of a decision to split or merge.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ReshardMode {
    /// Nothing; it is not even made, except when somebody asks.
    Off,
    /// It is logged, counted and explained.
    Advise,
    /// It is carried out.
    On,
}

/// The words of a mode.
pub const MODES: &[&str] = &["off", "advise", "on"];

/// A topic's settings of splits and merges by load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReshardConfig {
    /// What becomes of a decision.
    pub mode: ReshardMode,
    /// Bytes per second that a range should not exceed; 0: any.
    pub bytes_per_second: u64,
    /// Records per second that a range should not exceed; 0: any.
    pub records_per_second: u64,
    /// Stored bytes that a range should not exceed; 0: any.
    pub stored_bytes: u64,
    /// Neighbours that reach together less than so many percent of every target are merged; 0: none are.
    pub merge_below_percent: u32,
    /// Time over which load is judged, ms.
    pub window_ms: i64,
    /// Time for which a range stays as it was made, ms.
    pub cool_down_ms: i64,
    /// Fewest ranges.
    pub ranges_min: u32,
    /// Most ranges.
    pub ranges_max: u32,
    /// Most splits and merges at a time.
    pub changes_max: u32,
}

impl ReshardMode {
    /// The mode of a word.
    pub fn of(word: &str) -> Option<ReshardMode> {
        match word.trim() {
            "off" => Some(ReshardMode::Off),
            "advise" => Some(ReshardMode::Advise),
            "on" => Some(ReshardMode::On),
            _ => None,
        }
    }
}

impl std::fmt::Display for ReshardMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ReshardMode::Off => "off",
            ReshardMode::Advise => "advise",
            ReshardMode::On => "on",
        })
    }
}
