//! What two experts must have in common.

use super::error::SourceError;
use crate::{formats::ExpertGeometry, ids::ExpertKey};

/// Checks that an expert has the geometry of the first of its layer.
///
/// # Errors
/// [`SourceError::ExpertDiffers`], naming the first thing that differs.
pub(super) fn check_like_first(
    expert: ExpertKey,
    found: &ExpertGeometry,
    first: &ExpertGeometry,
) -> Result<(), SourceError> {
    let differs =
        |what, found: String, first: String| SourceError::ExpertDiffers { expert, what, found, first };
    if found == first {
        return Ok(());
    }
    if found.hidden != first.hidden {
        return Err(differs("hidden width", found.hidden.to_string(), first.hidden.to_string()));
    }
    if found.intermediate != first.intermediate {
        let (found, first) = (found.intermediate.to_string(), first.intermediate.to_string());
        return Err(differs("intermediate width", found, first));
    }
    if found.quantisation != first.quantisation {
        let (found, first) = (&found.quantisation, &first.quantisation);
        return Err(differs("storage of down, gate and up", format!("{found:?}"), format!("{first:?}")));
    }
    Err(differs("biases or activation", format!("{found:?}"), format!("{first:?}")))
}
