/* A library that is no plugin. */
int toy_symbol(void);

int toy_symbol(void)
{
    return 0;
}
