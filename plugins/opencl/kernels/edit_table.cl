/* The step's edits of one group's block tables [slot][index]. Edits apply in order, so one that a later edit overwrites is left
 * out. One work-item for each edit. */
__kernel void edit_table(const __global struct step *step, uint group, __global uint *table, uint max_blocks)
{
    const __global struct step_edit *edits = STEP_ARRAY(struct step_edit, step, edits);
    uint i = get_global_id(0);
    bool last = true;

    if (i >= step->n_edits || edits[i].group != group)
        return;
    for (uint later = i + 1; later < step->n_edits; later++)
        last = last && (edits[later].group != group || edits[later].slot != edits[i].slot ||
                        edits[later].index != edits[i].index);
    if (last)
        table[(ulong)edits[i].slot * max_blocks + edits[i].index] = edits[i].block;
}
